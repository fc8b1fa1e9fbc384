import axe from "axe-core";
import type { Page } from "playwright-core";
import { createSandbox, goTo, openSandbox, removeSandbox, waitForPanel } from "./browser";
import { expect, it } from "./fixtures";

interface Finding {
  page: string;
  rule: string;
  targets: string[];
}

/** Serious findings of axe on the current page, of one rule or of all. The content security policy stays on. */
async function findSerious(page: Page, name: string, rule?: string): Promise<Finding[]> {
  const violations = await page.evaluate(async (only) => {
    const engine = (globalThis as unknown as { axe: typeof axe }).axe;
    const result = await engine.run(document, { resultTypes: ["violations"], ...(only === undefined ? {} : { runOnly: [only] }) });
    return result.violations.filter(({ impact }) => impact === "serious" || impact === "critical").map(({ id, nodes }) => ({ rule: id, targets: nodes.slice(0, 4).map((node) => String(node.target)) }));
  }, rule);
  return violations.map((violation) => ({ page: name, ...violation }));
}

async function switchTheme(page: Page, colorScheme: "light" | "dark"): Promise<void> {
  await page.evaluate((theme) => { document.documentElement.dataset.theme = theme; }, colorScheme);
}

/** All rules in light; in dark those that depend on colours. */
async function findInBothThemes(page: Page, name: string): Promise<Finding[]> {
  const light = await findSerious(page, `${name} (light)`);
  await switchTheme(page, "dark");
  const dark = await findSerious(page, `${name} (dark)`, "color-contrast");
  await switchTheme(page, "light");
  return [...light, ...dark];
}

const PAGES: readonly (readonly [path: string, text: string])[] = [
  ["/", "Sandboxes"],
  ["/new", "What should the agent do?"],
  ["/approvals", "Approvals"],
  ["/monitor", "Events stored"],
  ["/projects", "Projects"],
  ["/settings?section=agents", "Can:"],
  ["/settings?section=secrets", "Add or replace a secret"],
  ["/settings?section=tokens", "New token"],
  ["/settings?section=users", "New user"],
  ["/settings?section=page", "Notifications"],
  ["/sign-in", "API key"],
];
const TABS = ["changes", "terminal", "files", "preview", "git", "events", "details"];

it("has no serious findings of axe on any page, in light and dark", async ({ openPage }) => {
  const page = await openPage({ colorScheme: "light", reducedMotion: "reduce" });
  const prompt = "say # Title\\n\\nA `code` and a [link](https://example.org).\nrun ls\nrun false\nedit a.rs fn a() {}\nask May I go on?";
  const id = await createSandbox(page, { prompt, title: "Accessible" });
  await openSandbox(page, id);
  await page.evaluate(axe.source);
  // Colours between two themes have no contrast.
  await page.addStyleTag({ content: "* { transition: none !important; }" });
  await page.getByRole("region", { name: /^Approval:/ }).first().waitFor();
  const findings: Finding[] = [];
  for (const tab of TABS) {
    await goTo(page, `/sandboxes/${id}?tab=${tab}`);
    await waitForPanel(page, tab);
    findings.push(...(await findInBothThemes(page, tab)));
  }
  await goTo(page, `/sandboxes/${id}/replay`);
  await page.getByRole("slider", { name: "Position" }).press("End");
  findings.push(...(await findInBothThemes(page, "replay")));
  for (const [path, text] of PAGES) {
    await goTo(page, path);
    await page.getByText(text).first().waitFor();
    findings.push(...(await findInBothThemes(page, path)));
  }
  expect(findings).toEqual([]);
  await removeSandbox(page, id);
}, 90_000);
