/** Light or dark as Airflow's own page, in which this one is shown; else as the system. On paper, light. */
export function followTheme(): void {
  const around = airflows();
  const system = matchMedia("(prefers-color-scheme: dark)");
  const look = (): void => {
    const said = ["dark", "light"].find((each) => around?.classList.contains(each) || around?.dataset["theme"] === each);
    document.documentElement.dataset["theme"] = said ?? (system.matches ? "dark" : "light");
  };
  look();
  system.addEventListener("change", look);
  if (around) new MutationObserver(look).observe(around, { attributeFilter: ["class", "data-theme"] });
  addEventListener("beforeprint", () => (document.documentElement.dataset["theme"] = PRINT));
  addEventListener("afterprint", look);
}

const PRINT = "print";

export function isPrinting(): boolean {
  return document.documentElement.dataset["theme"] === PRINT;
}

function airflows(): HTMLElement | null {
  try {
    return window.parent === window ? null : window.parent.document.documentElement;
  } catch {
    return null; // Another origin keeps its theme to itself.
  }
}
