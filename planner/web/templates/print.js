export default function ({parentElement}) {
    parentElement.querySelector("button").onclick = () => window.print();
}
