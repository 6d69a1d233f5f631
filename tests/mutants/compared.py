"""Defects of matrices of runs and of what is said of them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

EFFECTS = "tests/tasks/ablate/test_effects.py"
STAGE = "tests/tasks/ablate/test_stage.py"

COMPARED = (
    Mutant(
        name="ablate-noise-of-documents",
        about="ablate: a difference is as sure as if other documents gave the same",
        path="tasks/ablate/effects.py",
        before="    return float((parts**2).sum()) * number / (number - 1), number - 1\n",
        after="    return 0.0, number - 1\n",
        fails=(f"{EFFECTS}::test_few_documents_leave_a_difference_open_however_many_seeds_there_are",),
    ),
    Mutant(
        name="ablate-unpaired",
        about="ablate: seeds are noise though all arms share them",
        path="tasks/ablate/effects.py",
        before=" - values.mean(1, keepdims=True) - values.mean(0, keepdims=True) + values.mean()\n",
        after=" - values.mean(1, keepdims=True)\n",
        fails=(f"{EFFECTS}::test_two_arms_are_compared_by_the_paired_t_test",),
    ),
    Mutant(
        name="ablate-long-documents",
        about="ablate: one long document counts as many",
        path="tasks/ablate/effects.py",
        before="    number = float(weights.sum() ** 2 / (weights**2).sum())\n",
        after="    number = float(len(weights))\n",
        fails=(f"{EFFECTS}::test_few_documents_leave_a_difference_open_however_many_seeds_there_are",),
    ),
    Mutant(
        name="ablate-knows-by-heart",
        about="ablate: a document that an arm trained on is among those that compare it",
        path="tasks/ablate/held_out.py",
        before="    return Fair(~trained & ~copied, kept, ",
        after="    return Fair(~copied, kept, ",
        fails=(f"{STAGE}::test_a_document_that_an_arm_trained_on_or_may_have_copied_is_left_out",),
    ),
    Mutant(
        name="ablate-seeds-of-one",
        about="ablate: all seeds of an arm are the first",
        path="flows/matrix/arms.py",
        before='sets += [f"{key}={own + seed - first}" for key',
        after='sets += [f"{key}={own}" for key',
        fails=(
            "tests/flows/matrix/test_arms.py::test_all_combinations_are_run_with_every_seed_and_the_profile_as_it_is_comes_first",
        ),
    ),
    Mutant(
        name="mix-no-price",
        about="mix: a proposal follows the noise of its law",
        path="tasks/ablate/mix/proposal.py",
        before="PRICE = 2.0",
        after="PRICE = 0.02",
        fails=("tests/tasks/ablate/mix/test_laws.py::test_where_no_share_matters_natural_proportions_stay",),
    ),
    Mutant(
        name="mix-old-tokens",
        about="mix: models of other tokens count as if they had these",
        path="tasks/ablate/mix/laws.py",
        before="self.apart.astype(float)",
        after="0 * self.apart",
        fails=("tests/tasks/ablate/mix/test_laws.py::test_models_of_other_tokens_shift_the_law_and_not_the_proposal",),
    ),
    Mutant(
        name="law-ends-early",
        about="laws: a fit isn't followed to its end, as Chinchilla's wasn't",
        path="tasks/ablate/laws/law.py",
        before="STEPS = 400",
        after="STEPS = 4",
        fails=("tests/tasks/ablate/test_laws.py::test_the_fit_is_the_minimum_that_scipy_finds",),
    ),
    Mutant(
        name="multiplier-of-the-loss",
        about="laws: a multiplier is of the loss in place of the compute",
        path="tasks/ablate/laws/multiplier.py",
        before="np.power(above / below, 1 / gamma)",
        after="np.power(above / below, gamma)",
        fails=("tests/tasks/ablate/test_laws.py::test_a_planted_multiplier_is_found",),
    ),
    Mutant(
        name="held-out-not-held-out",
        about="laws: the largest trainings are predicted by a law that knows them",
        path="tasks/ablate/laws/optimum.py",
        before="rest = fit([points[index] for group in smaller for index in group])",
        after="rest = fit(points)",
        fails=("tests/tasks/ablate/test_laws.py::test_the_largest_trainings_are_predicted_from_the_others",),
    ),
)
