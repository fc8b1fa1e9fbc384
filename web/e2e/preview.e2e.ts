import { createSandbox, openSandbox, removeSandbox } from "./browser";
import { expect, it } from "./fixtures";

/** Asks for the page's API from the preview's origin, which must not answer. */
const PAGE = `<h1>Hello from the sandbox</h1><script>
fetch("/api/v1/sandboxes").then((answer) => answer.text()).then((text) => { document.body.append(" api:" + text.slice(0, 20)); });
try { top.document.title = "taken"; } catch (error) { document.body.append(" blocked"); }
</script>`;

it.skipIf(process.env.E2E_PREVIEWS === undefined)("shows a program of the sandbox on an origin of its own", async ({ openPage }) => {
  const page = await openPage();
  const prompt = `run mkdir -p www && printf '%s' '${PAGE.replaceAll("\n", " ")}' > www/index.html && cd www && (python3 -m http.server 8123 >/dev/null 2>&1 &)`;
  const id = await createSandbox(page, { prompt, title: "A program with a page" });
  await openSandbox(page, id, "preview");
  await page.getByText("8123").first().waitFor();
  await page.getByRole("button", { name: "Show", exact: true }).click();
  const frame = page.frameLocator("iframe[title='Preview of port 8123']");
  await frame.getByText("Hello from the sandbox").waitFor();
  await frame.getByText("blocked").waitFor();
  const source = await page.locator("iframe").getAttribute("src");
  expect(new URL(source ?? "").host).not.toBe(new URL(page.url()).host);
  expect(await page.title()).not.toContain("taken");
  await page.getByRole("button", { name: "Revoke this preview" }).click();
  await page.locator("iframe").waitFor({ state: "detached" });
  await removeSandbox(page, id);
});
