"""Buttons that work in the browser: a chart as SVG or PNG, as it is on the page; the page printed, or saved as PDF."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from streamlit.components import v2

PNG_SCALE = 2
"""Pixels of a PNG for each pixel of the page: sharp on paper. A choice."""
_HTML = """<span class="picture-files"><button type="button" name="png">PNG</button>
<button type="button" name="svg">SVG</button></span>"""
_CSS = """.picture-files {display: inline-flex; gap: 0.75rem}
.picture-files button {background: none; border: 0; padding: 0.25rem 0; font: inherit; font-size: 0.875rem;
    color: inherit; cursor: pointer}
.picture-files button:is(:hover, :focus-visible) {color: var(--st-primary-color); text-decoration: underline}"""
_SCRIPT = """
const save = (parent, blob, name) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    parent.append(link); // inside the popover, which closes on clicks elsewhere
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};
const background = element => {
    for (let at = element; at; at = at.parentElement) {
        const colour = getComputedStyle(at).backgroundColor;
        if (colour && colour !== "transparent" && !/, 0\\)$/.test(colour)) return colour;
    }
    return "white";
};
const copied = svg => {
    const copy = svg.cloneNode(true), back = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const width = svg.width.baseVal.value, height = svg.height.baseVal.value;
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.setAttribute("font-family", getComputedStyle(svg).fontFamily);
    back.setAttribute("width", "100%");
    back.setAttribute("height", "100%");
    back.setAttribute("fill", background(svg));
    copy.prepend(back);
    return {text: new XMLSerializer().serializeToString(copy), width, height};
};
export default function ({parentElement, data}) {
    const chart = () => document.querySelector(`.st-key-${CSS.escape(data.chart)}`);
    const saved = {
        svg: () => {
            const svg = chart()?.querySelector("svg.marks");
            if (svg) save(parentElement, new Blob([copied(svg).text], {type: "image/svg+xml"}), `${data.file}.svg`);
        },
        png: () => {
            const svg = chart()?.querySelector("svg.marks"), drawn = chart()?.querySelector("canvas.marks");
            if (drawn) drawn.toBlob(blob => save(parentElement, blob, `${data.file}.png`));
            if (!svg) return;
            const {text, width, height} = copied(svg), image = new Image();
            image.onload = () => {
                const canvas = document.createElement("canvas");
                canvas.width = data.scale * width;
                canvas.height = data.scale * height;
                canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
                canvas.toBlob(blob => save(parentElement, blob, `${data.file}.png`));
            };
            image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
        },
    };
    for (const button of parentElement.querySelectorAll("button")) button.onclick = saved[button.name];
}
"""
_PRINT = """
export default function ({parentElement}) {
    parentElement.querySelector("button").onclick = () => window.print();
}
"""


@cache
def _printer() -> Any:  # noqa: ANN401 - what mounts the button
    html = '<span class="picture-files"><button type="button">Print or PDF</button></span>'
    return v2.component("planner_print", html=html, css=_CSS, js=_PRINT, isolate_styles=False)


def show_print() -> None:
    """A button that prints the page as its tab stands; browsers print to PDF files too."""
    _printer()(key="print-page", width="content")


@cache
def _component() -> Any:  # noqa: ANN401 - what mounts the buttons
    return v2.component("planner_picture_files", html=_HTML, css=_CSS, js=_SCRIPT, isolate_styles=False)


def show(chart_key: str, name: str) -> None:
    """The buttons for a chart.

    Args:
        chart_key: of the container with the chart.
        name: of its data, for the files.
    """
    file = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    _component()(
        data={"chart": chart_key, "file": file, "scale": PNG_SCALE}, key=f"picture-{chart_key}", width="content"
    )
