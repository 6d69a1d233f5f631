"""Text of documents. Here rather than in `download`, as its process loads no more than it needs.

read.py      a document by its format
pdf.py       the text layer of PDF: characters and their places
private_use.py  figures, small capitals and Thai with private codes
layout.py    lines in reading order, without running heads
paragraphs.py  lines as paragraphs
package.py   the parts of formats that are ZIP files, within bounds
blocks.py    headings, lists, tables and notes as plain text
docx.py, odt.py, pptx.py, epub.py  such formats
markup.py    the text of XHTML that is all text, as in a book
mail.py      messages
plain.py     Markdown and source code
"""
