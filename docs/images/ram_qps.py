"""Draw docs/images/ram-qps.svg from the table of docs/reports/peers.md: python docs/images/ram_qps.py"""

import math
from pathlib import Path

# A million documents, recall@100 >= .95: name, bytes of RAM a document, queries a second and core, label offset.
POINTS = [
    ("bidr, 64-byte codes", 70, 1599, 10, 4),
    ("bidr, 32-byte codes", 38, 1299, 10, -8),
    ("Faiss IVF fast-scan, 64 B", 80, 1206, 10, 4),
    ("Faiss IVF fast-scan, 32 B", 48, 920, 10, -6),
    ("ScaNN tree, 64 B", 75, 819, 10, 8),
    ("hnswlib", 1783, 957, -58, 4),
    ("usearch i8", 632, 587, 10, 4),
    ("DiskANN, 64 B", 67, 179, 10, 0),
    ("LanceDB IVF_PQ, 64 B", 82, 41, 10, 4),
]
LEFT, TOP, WIDTH, HEIGHT = 70, 40, 600, 280


def scale(ram: float, qps: float) -> tuple[float, float]:
    return LEFT + WIDTH * math.log10(ram / 30) / math.log10(3000 / 30), TOP + HEIGHT * (1 - qps / 1800)


def main() -> None:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 30} {TOP + HEIGHT + 60}" '
        'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" font-weight="700">A million vectors, recall@100 of .95: '
        "queries a second and core against RAM</text>",
    ]
    for qps in range(0, 1801, 600):
        y = scale(30, qps)[1]
        parts.append(f'<path d="M{LEFT} {y:.0f} h{WIDTH}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.0f}" text-anchor="end" fill="#555">{qps:,}</text>')
    for ram in (30, 100, 300, 1000, 3000):
        x = scale(ram, 0)[0]
        parts.append(f'<path d="M{x:.0f} {TOP} v{HEIGHT}" stroke="#eee"/>')
        parts.append(f'<text x="{x:.0f}" y="{TOP + HEIGHT + 18}" text-anchor="middle" fill="#555">{ram:,}</text>')
    parts.append(
        f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 42}" text-anchor="middle">'
        "anonymous memory, bytes a document (log scale)</text>"
    )
    for name, ram, qps, dx, dy in POINTS:
        x, y = scale(ram, qps)
        ours = name.startswith("bidr")
        color, weight = ("#3f51b5", 700) if ours else ("#777", 400)
        parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{6 if ours else 4}" fill="{color}"/>')
        parts.append(f'<text x="{x + dx:.0f}" y="{y + dy:.0f}" fill="{color}" font-weight="{weight}">{name}</text>')
    Path(__file__).with_name("ram-qps.svg").write_text("".join(parts) + "</svg>\n", encoding="utf-8")


if __name__ == "__main__":
    main()
