import { useId, type InputHTMLAttributes, type ReactNode, type SelectHTMLAttributes, type TextareaHTMLAttributes } from "react";

const CONTROL =
  "rounded-md border border-edge bg-bg px-2.5 text-control text-text placeholder:text-muted disabled:opacity-60 focus-visible:outline-offset-0";

/** Controls are as wide as their place, unless the caller sets a width. */
function widthOf(className: string): string {
  return /(^|\s)w-/.test(className) ? className : `w-full ${className}`;
}

interface FieldProps {
  label: string;
  hint?: ReactNode;
  error?: string | null;
  children: (control: { id: string; "aria-describedby": string | undefined }) => ReactNode;
}

/** A labelled control with a hint or an error below it. */
export function Field({ label, hint, error, children }: FieldProps) {
  const id = useId();
  const hintId = `${id}-hint`;
  const hasHint = (hint !== undefined && hint !== null) || error != null;
  return (
    <div className="flex flex-col gap-1">
      <label htmlFor={id} className="text-control font-semibold">{label}</label>
      {children({ id, "aria-describedby": hasHint ? hintId : undefined })}
      {hasHint && (
        <p id={hintId} className={`text-meta ${error != null ? "text-bad" : "text-muted"}`}>{error ?? hint}</p>
      )}
    </div>
  );
}

export function TextInput({ className = "", ...rest }: InputHTMLAttributes<HTMLInputElement>) {
  return <input type="text" autoComplete="off" spellCheck={false} {...rest} className={`${CONTROL} h-8 max-md:h-11 ${widthOf(className)}`} />;
}

export function TextArea({ className = "", ...rest }: TextareaHTMLAttributes<HTMLTextAreaElement>) {
  return <textarea {...rest} className={`${CONTROL} py-2 ${widthOf(className)}`} />;
}

export function Select({ className = "", children, ...rest }: SelectHTMLAttributes<HTMLSelectElement>) {
  return <select {...rest} className={`${CONTROL} h-8 max-md:h-11 ${widthOf(className)}`}>{children}</select>;
}

export function Checkbox({ label, ...rest }: InputHTMLAttributes<HTMLInputElement> & { label: ReactNode }) {
  return (
    <label className="flex min-h-8 items-center gap-2 text-control max-md:min-h-11">
      <input type="checkbox" {...rest} className="size-4 accent-(--accent) max-md:size-5" />
      <span>{label}</span>
    </label>
  );
}
