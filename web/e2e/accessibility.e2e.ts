import { afterAll, beforeAll, expect, it } from "vitest";
import axe from "axe-core";
import type { Browser, Page } from "playwright-core";
import { BASE_URL, createSandbox, launchBrowser, openPage, removeSandbox, waitForPanel } from "./browser";

let browser: Browser;
beforeAll(async () => { browser = await launchBrowser(); });
afterAll(async () => { await browser.close(); });

interface Finding {
  page: string;
  rule: string;
  targets: string[];
}

/** Serious findings of axe on the current page. The page's content security policy stays on. */
async function findSerious(page: Page, name: string): Promise<Finding[]> {
  await page.evaluate(axe.source);
  const violations = await page.evaluate(async () => {
    const engine = (globalThis as unknown as { axe: typeof axe }).axe;
    const result = await engine.run(document, { resultTypes: ["violations"] });
    return result.violations.filter(({ impact }) => impact === "serious" || impact === "critical").map(({ id, nodes }) => ({ rule: id, targets: nodes.slice(0, 4).map((node) => String(node.target)) }));
  });
  return violations.map((violation) => ({ page: name, ...violation }));
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

it.each(["light", "dark"] as const)("has no serious findings of axe on any page (%s)", async (colorScheme) => {
  const { page, context } = await openPage(browser, { colorScheme, reducedMotion: "reduce" });
  const prompt = "say # Title\\n\\nA `code` and a [link](https://example.org).\nrun ls\nrun false\nedit a.rs fn a() {}\nask May I go on?";
  const id = await createSandbox(page, { prompt, title: `Accessible ${colorScheme}` });
  const findings: Finding[] = [];
  for (const [path, text] of PAGES) {
    await page.goto(BASE_URL + path);
    await page.getByText(text).first().waitFor();
    findings.push(...(await findSerious(page, path)));
  }
  for (const tab of TABS) {
    await page.goto(`${BASE_URL}/sandboxes/${id}?tab=${tab}`);
    await page.getByRole("region", { name: /^Approval:/ }).first().waitFor();
    await waitForPanel(page, tab);
    findings.push(...(await findSerious(page, tab)));
  }
  await page.goto(`${BASE_URL}/sandboxes/${id}/replay`);
  await page.getByRole("slider", { name: "Position" }).press("End");
  findings.push(...(await findSerious(page, "replay")));
  expect(findings).toEqual([]);
  await removeSandbox(page, id);
  await context.close();
}, 90_000);
