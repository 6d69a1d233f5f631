"""`python -m benchmarks.posttrain.adapters --store store`: how far is LoRA from training all weights?

The base of `tiny` is tuned on its instructions, all weights of it or an adapter alone, over as many rows in the same
order. Measured is the loss of the answers that were held out, by a hash that no seed changes, in nats a token.
"""

from __future__ import annotations

from benchmarks.posttrain.seeds import add_store, of_tiny, parser_of, print_mean, runtime_of, tuned
from tasks.posttrain.methods.sft import SftConfig


def main() -> None:
    """Train and measure, and print the table."""
    parser = parser_of("adapters", __doc__)
    add_store(parser)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="of all weights; that of the profile tiny")
    parser.add_argument("--adapter-rate", type=float, default=1e-2, help="of an adapter, which likes it higher")
    parser.add_argument("--epochs", type=float, default=1)
    options = parser.parse_args()
    base, rows = of_tiny(options.store, "pretrain", "model"), of_tiny(options.store, "pairs", "instructions")
    ways = {"all weights": SftConfig(epochs=options.epochs, learning_rate=options.learning_rate)} | {
        f"LoRA, rank {rank}": SftConfig.model_validate(
            {"epochs": options.epochs, "learning_rate": options.adapter_rate, "adapter": {"rank": rank, "alpha": rank}}
        )
        for rank in options.ranks
    }
    print("| trained | seed | parameters | share | loss before | loss after |\n|---|---|---|---|---|---|")
    losses: dict[str, list[float]] = {}
    for way, config in ways.items():
        for seed in range(options.seeds):
            seeded = config.model_copy(update={"seed": seed})
            folder = options.folder / f"{way} {seed}" / "sft"
            counts = tuned(folder, runtime_of(options.threads), seeded, base, rows).counts
            size, share = counts.get("trained_parameters"), counts.get("trainable_share", 1.0)
            found = f"{counts['initial_validation_loss']:.4f} | {counts['validation_loss']:.4f}"
            print(f"| {way} | {seed} | {'all' if size is None else f'{size:,}'} | {share:.1%} | {found} |", flush=True)
            losses.setdefault(way, []).append(counts["validation_loss"])
    whole = losses.pop("all weights")
    for way, found_losses in losses.items():
        print_mean(f"{way}, less all weights:", [b - a for a, b in zip(whole, found_losses, strict=True)], "+.4f")


if __name__ == "__main__":
    main()
