import { useCallback, useState } from "react";
import { loadComments, storeComments, type LineComment } from "./comments";

export interface CommentStore {
  all: readonly LineComment[];
  drafts: readonly LineComment[];
  save: (comment: LineComment) => void;
  remove: (id: string) => void;
  markSent: () => void;
  clearSent: () => void;
}

export function useComments(sandboxId: string): CommentStore {
  const [all, setAll] = useState(() => loadComments(sandboxId));
  const change = useCallback(
    (update: (before: LineComment[]) => LineComment[]) => {
      setAll((before) => {
        const next = update(before);
        storeComments(sandboxId, next);
        return next;
      });
    },
    [sandboxId],
  );
  return {
    all,
    drafts: all.filter((comment) => !comment.isSent),
    save: (comment) => { change((before) => [...before.filter(({ id }) => id !== comment.id), comment]); },
    remove: (id) => { change((before) => before.filter((comment) => comment.id !== id)); },
    markSent: () => { change((before) => before.map((comment) => ({ ...comment, isSent: true }))); },
    clearSent: () => { change((before) => before.filter((comment) => !comment.isSent)); },
  };
}
