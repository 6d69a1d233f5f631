"""`python data_half.py FOLDER`: the data half from Python, in a process without what the extras bring. A script without
`if __name__ == "__main__":`, as users write them."""

import sys
from pathlib import Path

import gristmill as gm

folder = Path(sys.argv[1])
TEXTS = [f"The mill number {number} grinds wheat and rye for the whole valley." for number in range(40)]
kept, removed = gm.dedup([*TEXTS, TEXTS[0]], progress=False, threshold=1.0)
assert (len(kept), len(removed)) == (40, 1)
result = gm.filter(kept, folder / "clean", config={"preset": "clean", "toxicity": {}}, progress=False)
assert result.kept
tokenizer = gm.train_tokenizer(folder / "clean", vocab_size=300, progress=False)
assert tokenizer.decode(tokenizer.encode("A mill")) == "A mill"
missing = gm.plan("smoke", store=folder / "store").missing
assert "export" in missing
remedy = ""
try:
    gm.run("smoke", store=folder / "store")
except gm.GristmillError as error:
    remedy = error.remedy
assert remedy == "Install: pip install 'gristmill[train,eval,export]'"
assert not (folder / "store").exists()
print("done")
