import type { Page } from "playwright-core";
import { createSandbox, openSandbox, removeSandbox } from "./browser";
import { expect, it } from "./fixtures";

const screen = (page: Page) => page.locator("[data-terminal] .xterm-rows");

it("shares shells between viewers with their scroll-back; edits, uploads, downloads and deletes files", async ({ openPage }) => {
  const [first, second] = [await openPage(), await openPage()];
  const id = await createSandbox(first, { prompt: "say Ready.", title: "Tools" });
  await openSandbox(first, id, "terminal");
  await first.getByRole("button", { name: "New shell" }).click();
  await screen(first).getByText("$").first().waitFor();
  await first.keyboard.type("echo sum-$((40+2))\n");
  await screen(first).getByText("sum-42").waitFor();

  // Another viewer gets the scroll-back, and both see what each of them types.
  await openSandbox(second, id, "terminal");
  await second.getByRole("button", { name: "Shell 1", exact: true }).click();
  await screen(second).getByText("sum-42").waitFor();
  await second.locator("[data-terminal]").click();
  await second.keyboard.type("echo both-$((1+1))\n");
  await screen(second).getByText("both-2").waitFor();
  await screen(first).getByText("both-2").waitFor();
  await second.getByRole("button", { name: "New shell" }).click();
  await second.getByRole("button", { name: "Shell 2", exact: true }).waitFor();
  await first.getByRole("button", { name: "End shell 1" }).click();
  await screen(first).waitFor({ state: "detached" });

  await first.getByRole("tab", { name: "Files" }).click();
  const panel = first.locator("#panel-files");
  await panel.getByRole("button", { name: "README.md" }).click();
  await panel.getByRole("button", { name: "Edit", exact: true }).click();
  await panel.getByLabel("Content of README.md").fill("Changed by a person.\n");
  await panel.getByRole("button", { name: "Save" }).click();
  await panel.getByText("Changed by a person.").waitFor();
  const downloaded = first.waitForEvent("download");
  await panel.getByRole("link", { name: "Download", exact: true }).click();
  expect((await downloaded).suggestedFilename()).toBe("README.md");

  await panel.locator("input[type=file]").setInputFiles({ name: "uploaded.txt", mimeType: "text/plain", buffer: Buffer.from("from the browser") });
  const back = panel.getByRole("button", { name: "Back to the tree" });
  if (await back.isVisible()) await back.click();
  await panel.getByRole("button", { name: "uploaded.txt" }).click();
  await panel.getByText("from the browser").waitFor();
  await panel.getByRole("button", { name: "Delete uploaded.txt" }).click();
  await first.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await panel.getByRole("button", { name: "uploaded.txt" }).waitFor({ state: "detached" });
  await removeSandbox(first, id);
});
