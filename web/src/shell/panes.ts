/** Moves the focus to the next pane. Panes have the attribute `data-pane`. */
export function focusNextPane(): void {
  const panes = [...document.querySelectorAll<HTMLElement>("[data-pane]")].filter((pane) => pane.offsetParent !== null);
  if (panes.length === 0) return;
  const current = panes.findIndex((pane) => pane.contains(document.activeElement));
  const next = panes[(current + 1) % panes.length];
  if (next === undefined) return;
  const target = next.querySelector<HTMLElement>("textarea, [tabindex='0'], a[href], button:not(:disabled), input") ?? next;
  if (target === next && !next.hasAttribute("tabindex")) next.tabIndex = -1;
  target.focus();
}
