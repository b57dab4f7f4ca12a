"""A plot as SVG: a line for each contender, with its spread."""

from xml.sax.saxutils import escape

# Okabe and Ito: told apart by colour-blind readers, too.
COLOURS = (
    "#000000",
    "#56b4e9",
    "#e69f00",
    "#d55e00",
    "#009e73",
    "#0072b2",
    "#cc79a7",
    "#8a949e",
    "#7b4ea3",
)
INK, GREY, GRID = "#1c2733", "#5b6773", "#dfe4e9"
WIDTH, HEIGHT = 840, 440
LEFT, RIGHT, TOP, BOTTOM = 64, 640, 64, 380


def label(x, y, text, size=12, fill=INK, more=""):
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}"'
    return f"<text {place} {more}>{escape(str(text))}</text>"


def line(start, end, colour, more=""):
    (x1, y1), (x2, y2) = start, end
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}"{more}/>'


def plot(title, x_title, series, dashed):
    """`series`: by name, by position on the x axis (a number), (value, least, most). Those in
    `dashed` are bounds."""
    positions = sorted({x for points in series.values() for x in points})
    span = positions[-1] - positions[0]
    top = 1.1 * max(most for points in series.values() for _, _, most in points.values())
    step = next(step for step in (0.1, 0.2, 0.25, 0.5, 1, 2, 5, 10, 100) if top / step <= 10)

    def x_of(position, number):
        # Side by side, so that spreads at the same position do not cover each other.
        margin = 0.5 / len(positions)
        place = LEFT + (RIGHT - LEFT) * (
            margin + (1 - 2 * margin) * ((position - positions[0]) / span if span else 0.5)
        )
        return place + 5 * (number - (len(series) - 1) / 2)

    def y_of(value):
        return BOTTOM - (BOTTOM - TOP) * value / top

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="DejaVu Sans, Verdana, sans-serif">',
        f"<title>{escape(title)}</title>",
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8" '
        'fill="#ffffff" stroke="#c8d0d8"/>',
        label(24, 34, title, 15, INK, 'font-weight="bold"'),
    ]
    for tick in range(int(top / step) + 1):
        y = y_of(tick * step)
        lines.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}" stroke="{GRID}"/>')
        lines.append(label(LEFT - 8, y + 4, f"{tick * step:g}", 12, GREY, 'text-anchor="end"'))
    middle = (len(series) - 1) / 2
    lines += [
        label(x_of(position, middle), BOTTOM + 20, position, 12, GREY, 'text-anchor="middle"')
        for position in positions
    ]
    lines.append(label((LEFT + RIGHT) / 2, BOTTOM + 42, x_title, 12, GREY, 'text-anchor="middle"'))
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        dash = ' stroke-dasharray="5 4"' if name in dashed else ""
        path = " ".join(
            f"{x_of(x, number):.1f},{y_of(value):.1f}"
            for x, (value, _, _) in sorted(points.items())
        )
        lines.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
        )
        for position, (value, least, most) in points.items():
            x = x_of(position, number)
            lines.append(line((x, y_of(least)), (x, y_of(most)), colour))
            lines.append(f'<circle cx="{x:.1f}" cy="{y_of(value):.1f}" r="3.5" fill="{colour}"/>')
        y = TOP + 12 + 22 * number
        more = f' stroke-width="2"{dash}'
        lines.append(line((RIGHT + 20, y - 4), (RIGHT + 48, y - 4), colour, more))
        lines.append(label(RIGHT + 56, y, name))
    return "\n".join([*lines, "</svg>", ""])
