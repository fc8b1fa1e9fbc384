import { useState, type FormEvent, type ReactNode } from "react";
import { describeFailure } from "@/api/problem";
import { Button } from "./button";
import { Dialog, DialogActions } from "./dialog";
import { Notice } from "./notice";

interface FormDialogProps {
  title: string;
  description?: string;
  submit: string;
  isDanger?: boolean;
  canSubmit?: boolean;
  onSubmit: () => Promise<void>;
  onClose: () => void;
  children?: ReactNode;
}

/** A dialog with one form. A failure stays in the dialog, so that the user can change the input. */
export function FormDialog({ title, description, submit, isDanger = false, canSubmit = true, onSubmit, onClose, children }: FormDialogProps) {
  const [failure, setFailure] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const handle = (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setFailure(null);
    onSubmit().then(onClose, setFailure).finally(() => { setBusy(false); });
  };
  return (
    <Dialog isOpen onClose={onClose} title={title} {...(description === undefined ? {} : { description })}>
      <form onSubmit={handle} className="flex flex-col gap-4">
        {children}
        {failure !== null && <Notice tone="bad">{describeFailure(failure)}</Notice>}
        <DialogActions>
          <Button onClick={onClose}>Cancel</Button>
          <Button type="submit" tone={isDanger ? "danger" : "primary"} isBusy={isBusy} disabled={!canSubmit}>{submit}</Button>
        </DialogActions>
      </form>
    </Dialog>
  );
}
