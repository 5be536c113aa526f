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
        if (colour && colour !== "transparent" && !/, 0\)$/.test(colour)) return colour;
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
