// Puts the page together.

function draw() {
  const page = document.getElementById("page");
  page.replaceChildren(...DATA.runs.map((run) => element("main", {}, element("h1", {}, run.name), summaryTab(run))));
}

draw();
loadColumns().then(draw);
