import type { NoticeTone } from "./rows";

export interface NoticeText {
  tone: NoticeTone;
  text: string;
  detail?: string;
}

export const plain = (text: string, detail = ""): NoticeText => ({ tone: "plain", text, detail });
export const bad = (text: string, detail = ""): NoticeText => ({ tone: "bad", text, detail });
export const attention = (text: string, detail = ""): NoticeText => ({ tone: "attention", text, detail });
export const ok = (text: string, detail = ""): NoticeText => ({ tone: "ok", text, detail });
