import { expect, it } from "vitest";
import { addLiveData, NO_LIVE_TEXT } from "./live-text";

it("appends pieces of the running text and ignores pieces of the finished one", () => {
  let live = addLiveData({ ...NO_LIVE_TEXT, afterSeq: 5 }, 4, { text: "old" });
  expect(live.text).toBe("");
  live = addLiveData(live, 5, { text: "new " });
  live = addLiveData(live, 5, { text: "text" });
  expect(live.text).toBe("new text");
  expect(addLiveData(live, 6, { other: 1 })).toBe(live);
});
