// What is wider than the screen is scrolled: by keys too, and with a word that says so.
document$.subscribe(() => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  for (const box of document.querySelectorAll(".md-typeset p:has(> img), .md-typeset pre > code, .md-typeset__scrollwrap")) {
    const mark = () => {
      const isWide = box.scrollWidth > box.clientWidth + 1;
      if (isWide) box.tabIndex = 0;
      if (box.tagName === "P") box.classList.toggle("scrolled", isWide);
    };
    new ResizeObserver(mark).observe(box);
    for (const image of box.querySelectorAll("img")) image.addEventListener("load", mark);
    mark();
  }
});
