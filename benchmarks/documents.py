"""`python -m benchmarks.documents FILE.pdf=SAME.epub …`: the text of PDF beside that of the same book as EPUB.

A book in both forms, written by one tool, shows which words of the PDF are in the right order: words in shingles of
five, in lower case, counted as often as they occur. Beside it is the text that PDFium gives by itself, in the order in
which it is painted, with the hyphens at line ends mended where a small letter follows. Precision also counts what only
the PDF has, such as its list of contents, and recall what only the EPUB has, such as addresses of links.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.download import table
from tasks.text.documents.pdf import read_pdf
from tasks.text.documents.read import reader

SHINGLE = 5
LIMIT = 500_000_000  # bytes
WORDS = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


def shingles(text: str) -> Counter[tuple[str, ...]]:
    """How often each run of five words occurs."""
    words = [word.lower() for word in WORDS.findall(text)]
    return Counter(tuple(words[at : at + SHINGLE]) for at in range(len(words) - SHINGLE + 1))


def by_pdfium(content: bytes) -> dict[str, Any]:
    """The text of each page as PDFium orders it."""
    from pypdfium2 import PdfDocument

    pages = [page.get_textpage().get_text_range() for page in PdfDocument(content)]
    text = "\n".join(pages).replace("\r\n", "\n").replace("\x02", "-\n")
    return {"text": re.sub(r"(?<=\w)-\n(?=[a-z])", "", text), "pages": len(pages)}


READERS: dict[str, Callable[[bytes], dict[str, Any]]] = {"gristmill": read_pdf, "PDFium alone": by_pdfium}


def rows_of(pdf: Path, epub: Path) -> list[dict[str, Any]]:
    """A row for each reader of a book."""
    gold = shingles(reader("resiliparse", str(LIMIT))(epub.read_bytes(), "epub")["text"])
    rows = []
    for name, read in READERS.items():
        began = time.process_time()
        found = read(pdf.read_bytes())
        seconds = time.process_time() - began
        mine = shingles(found["text"])
        both = (mine & gold).total()
        precision, recall = both / mine.total(), both / gold.total()
        rows.append(
            {
                "book": pdf.stem,
                "reader": name,
                "pages": found["pages"],
                "precision": f"{precision:.3f}",
                "recall": f"{recall:.3f}",
                "F1": f"{2 * precision * recall / (precision + recall):.3f}",
                "pages a CPU second": f"{found['pages'] / seconds:.0f}",
            }
        )
    return rows


def main() -> None:
    """Print a row for each book and reader."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("books", nargs="+", help="FILE.pdf=SAME.epub")
    books = [tuple(map(Path, book.split("="))) for book in parser.parse_args().books]
    table([row for pdf, epub in books for row in rows_of(pdf, epub)])


if __name__ == "__main__":
    main()
