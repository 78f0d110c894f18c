"""A report as one HTML file: highlights, plots and Markdown. It has no script and loads nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from markdown_it import MarkdownIt

CSS = """
:root { color-scheme: light dark;
  --paper: #fff; --card: #f6f7f9; --ink: #24272e; --soft: #5d6470; --line: #e3e5ea;
  --shade: #24272e55;
  --fp32: #2a6fdb; --int8: #12967d; --other: #d9602b; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14161a; --card: #1c1f25; --ink: #e4e6eb; --soft: #a0a7b4; --line: #333842;
  --shade: #e4e6eb4d;
  --fp32: #6ea8ff; --int8: #3fc7ab; --other: #ff8f5e; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: clamp(1.5rem, 4vw, 2.1rem); line-height: 1.2; letter-spacing: -.015em; margin: 0;
  overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.75rem 0 .75rem; }
p { max-width: 46rem; margin: .75rem 0; overflow-wrap: anywhere; }
code { font: .88em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
.lead { color: var(--soft); margin: .4rem 0 0; }
.warning { border-left: .25rem solid var(--other); padding-left: .9rem; margin-top: 1.5rem; }
.highlights { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; margin: 0;
  container-type: inline-size; }
.highlights div { background: var(--card); border-radius: .6rem; padding: 1.1rem 1.25rem;
  display: flex; flex-direction: column; justify-content: center; }
.highlights dt { font-size: clamp(1.4rem, 7cqi, 2.6rem); font-weight: 650; line-height: 1.2;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.highlights dd { margin: .3rem 0 0; color: var(--soft); font-size: .9375rem; line-height: 1.4; }
@media (max-width: 30rem) { .highlights { grid-template-columns: 1fr; gap: .6rem; }
  .highlights div { padding: .8rem 1rem; } }
.seen { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
  gap: 2.75rem 3rem; margin: 2rem 0 2.5rem; }
figure { margin: 0; }
figure h2 { margin: 0 0 .5rem; }
figure svg { display: block; width: 100%; height: auto; color: var(--ink); }
figure svg text { font-family: inherit !important; }
figcaption { color: var(--soft); font-size: .875rem; line-height: 1.45; margin-top: .5rem; }
/* a shadow at each edge beyond which the table goes on; at its own ends, paper covers it */
.scroll { overflow-x: auto; margin: 1rem 0 1.5rem; background:
  linear-gradient(to right, var(--paper) 40%, transparent) left / 3rem 100% no-repeat local,
  linear-gradient(to left, var(--paper) 40%, transparent) right / 3rem 100% no-repeat local,
  linear-gradient(to right, var(--shade), transparent) left / 1rem 100% no-repeat scroll,
  linear-gradient(to left, var(--shade), transparent) right / 1rem 100% no-repeat scroll; }
.scroll:focus-visible { outline: 2px solid var(--fp32); outline-offset: 2px; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .45rem 1.5rem .45rem 0;
  border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; }
th:first-child, td:first-child { min-width: 9rem; }
th:nth-child(n + 3), td:nth-child(n + 3) { white-space: nowrap; }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # holds the page to what is said above
SCROLL = '<div class="scroll" role="region" aria-label="table" tabindex="0">'


@dataclass(frozen=True)
class Picture:
    title: str
    caption: str
    svg: str


def page(
    title: str,
    lead: str,
    warning: str,
    highlights: Sequence[tuple[str, str]],
    pictures: Sequence[Picture],
    text: str,
) -> str:
    """warning: what a reader must know first. highlights: a figure and what it says.

    text: Markdown, with tables; HTML in it is escaped.
    """
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>",
        f'<h1>{escape(title)}</h1>\n<p class="lead">{escape(lead)}</p>',
        f'<p class="warning">{escape(warning)}</p>' if warning else "",
        f'<div class="seen">{_list(highlights)}{"".join(map(_figure, pictures))}</div>',
        _html(text),
        "</main>\n</body>\n</html>\n",
    ]
    return "\n".join(filter(None, parts))


def _list(highlights: Sequence[tuple[str, str]]) -> str:
    cells = [f"<div><dt>{escape(a)}</dt><dd>{escape(b)}</dd></div>" for a, b in highlights]
    return f'<dl class="highlights">{"".join(cells)}</dl>' if cells else ""


def _figure(picture: Picture) -> str:
    label = (
        f'<svg role="img" aria-label="{escape(picture.title)}; the tables below have the figures"'
    )
    return (
        f"<figure><h2>{escape(picture.title)}</h2>{picture.svg.replace('<svg', label, 1)}"
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


def _html(text: str) -> str:
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    html: str = renderer.render(text)
    return html.replace("<table>", f"{SCROLL}<table>").replace("</table>", "</table></div>")
