import { useState } from "react";
import { MessageSquare, Pencil, SendHorizontal, Trash2 } from "lucide-react";
import { Button, IconButton } from "@/components/button";
import { plural } from "@/text/format";
import { SafeText } from "@/text/safe-text-view";
import type { LineComment } from "./comments";

interface CommentFormProps {
  initial: string;
  onSave: (text: string) => void;
  onCancel: () => void;
}

export function CommentForm({ initial, onSave, onCancel }: CommentFormProps) {
  const [text, setText] = useState(initial);
  return (
    <form
      className="my-1 ml-8 flex max-w-2xl flex-col gap-2 rounded-md border border-edge bg-bg p-2 font-sans"
      onSubmit={(event) => {
        event.preventDefault();
        if (text.trim() !== "") onSave(text);
      }}
    >
      <textarea
        autoFocus
        rows={3}
        aria-label="Comment"
        placeholder="Comment for the agent"
        value={text}
        onChange={(event) => { setText(event.target.value); }}
        onKeyDown={(event) => {
          if (event.key === "Escape") onCancel();
          if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing) {
            event.preventDefault();
            if (text.trim() !== "") onSave(text);
          }
        }}
        className="w-full resize-y rounded border-0 bg-transparent text-control outline-none"
      />
      <div className="flex items-center justify-end gap-2">
        <span className="mr-auto text-meta text-muted">Sent together with your other comments</span>
        <Button size="small" onClick={onCancel}>Cancel</Button>
        <Button size="small" tone="primary" type="submit" disabled={text.trim() === ""}>Add comment</Button>
      </div>
    </form>
  );
}

interface CommentCardProps {
  comment: LineComment;
  onEdit: () => void;
  onRemove: () => void;
}

export function CommentCard({ comment, onEdit, onRemove }: CommentCardProps) {
  return (
    <div className={`my-1 ml-8 flex max-w-2xl items-start gap-2 rounded-md border px-2.5 py-1.5 font-sans ${comment.isSent ? "border-line bg-raised" : "border-accent bg-accent-tint"}`}>
      <MessageSquare size={14} className="mt-1 shrink-0 text-muted" aria-hidden />
      <div className="min-w-0 flex-1">
        <p className="text-control whitespace-pre-wrap [overflow-wrap:anywhere]"><SafeText text={comment.text} /></p>
        <p className="text-meta text-muted">{comment.isSent ? "Sent" : "Not sent yet"}</p>
      </div>
      {!comment.isSent && <IconButton label="Edit the comment" size="small" onClick={onEdit}><Pencil size={14} aria-hidden /></IconButton>}
      <IconButton label="Delete the comment" size="small" onClick={onRemove}><Trash2 size={14} aria-hidden /></IconButton>
    </div>
  );
}

interface CommentBarProps {
  count: number;
  verb: string;
  isBusy: boolean;
  blocked: string | null;
  onSend: () => void;
}

/** One bar sends all comments as one message. */
export function CommentBar({ count, verb, isBusy, blocked, onSend }: CommentBarProps) {
  if (count === 0) return null;
  return (
    <div className="flex shrink-0 items-center gap-3 border-t border-line bg-accent-tint px-3 py-2">
      <p className="min-w-0 flex-1 text-control">
        <span className="font-semibold">{plural(count, "comment")}</span> <span className="text-muted">{blocked ?? "not sent yet"}</span>
      </p>
      <Button tone="primary" isBusy={isBusy} disabled={blocked !== null} icon={<SendHorizontal size={15} aria-hidden />} onClick={onSend}>{verb} as one message</Button>
    </div>
  );
}
