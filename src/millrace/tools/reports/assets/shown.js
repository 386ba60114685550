// What is drawn on a tab: made when its place has a size, drawn again when that or the theme
// changes, and given up when the tab is left.

let cleanups = [];

function onLeave(cleanup) {
  cleanups.push(cleanup);
}

function leaveTab() {
  for (const cleanup of cleanups) cleanup();
  cleanups = [];
  hideTooltip();
}

// Calls back with the width of an element, whenever it has another one.
function onWidth(host, callback) {
  let width = 0;
  const observer = new ResizeObserver(() => {
    const now = Math.floor(host.clientWidth);
    if (now > 0 && now !== width) {
      width = now;
      callback(width);
    }
  });
  observer.observe(host);
  onLeave(() => observer.disconnect());
}

function onTheme(callback) {
  const listener = () => {
    styleOfPage = null;
    callback();
  };
  dark.addEventListener("change", listener);
  onLeave(() => dark.removeEventListener("change", listener));
}
