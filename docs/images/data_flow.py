"""Draw docs/images/data-flow.svg: python docs/images/data_flow.py"""

from pathlib import Path

BOX = (
    '<rect x="{x}" y="{y}" width="{w}" height="46" rx="6" fill="{fill}" stroke="#3f51b5"/>'
    '<text x="{cx}" y="{t1}" text-anchor="middle" font-weight="600">{a}</text>'
    '<text x="{cx}" y="{t2}" text-anchor="middle" fill="#555">{b}</text>'
)
ROWS = {
    "Indexing": (
        40,
        [
            ("documents", "texts or vectors"),
            ("encoder", "dense/ and sparse/"),
            ("quantizer", "vector to codes"),
            ("builder", "clusters, order, lists"),
            ("index folder", "one generation"),
        ],
    ),
    "Query": (
        150,
        [
            ("question", "text or vector"),
            ("query encoder", "query/"),
            ("engine", "N candidates, in RAM"),
            ("vector reader", "N vectors from disk"),
            ("k answers", "ranked by vectors"),
        ],
    ),
}


def draw_row(title: str, y: int, boxes: list[tuple[str, str]]) -> str:
    parts = [f'<text x="10" y="{y - 10}" font-weight="700">{title}</text>']
    for i, (a, b) in enumerate(boxes):
        x = 10 + i * 172
        fill = "#e8eaf6" if i in (2, 3) else "#ffffff"
        parts.append(BOX.format(x=x, y=y, w=150, fill=fill, cx=x + 75, t1=y + 20, t2=y + 36, a=a, b=b))
        if i:
            parts.append(f'<path d="M{x - 22} {y + 23} h18" stroke="#333" marker-end="url(#a)"/>')
    return "".join(parts)


def main() -> None:
    body = "".join(draw_row(title, y, boxes) for title, (y, boxes) in ROWS.items())
    note = "codes and lists go into RAM; vectors, ids and texts stay on disk"
    body += f'<text x="429" y="120" text-anchor="middle" fill="#3f51b5">{note}</text>'
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 870 210" font-family="sans-serif" font-size="13">'
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z"/></marker></defs><rect width="870" height="210" fill="#fff"/>' + body + "</svg>\n"
    )
    Path(__file__).with_name("data-flow.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
