import type { ButtonHTMLAttributes, ReactNode, Ref } from "react";
import { LoaderCircle } from "lucide-react";

export type ButtonTone = "primary" | "plain" | "quiet" | "danger" | "allow" | "deny";

const BASE =
  "inline-flex shrink-0 items-center justify-center gap-1.5 rounded-md border text-control font-semibold whitespace-nowrap transition-colors duration-100 select-none disabled:cursor-not-allowed aria-disabled:cursor-not-allowed disabled:opacity-55 aria-disabled:opacity-55";

const TONES: Record<ButtonTone, string> = {
  primary: "border-accent bg-accent text-on-accent hover:not-disabled:opacity-90",
  plain: "border-line bg-bg text-text hover:not-disabled:border-edge hover:not-disabled:bg-raised",
  quiet: "border-transparent bg-transparent text-muted hover:not-disabled:bg-sunk hover:not-disabled:text-text",
  danger: "border-line bg-bg text-bad hover:not-disabled:border-bad hover:not-disabled:bg-bad-tint",
  allow: "border-ok bg-ok text-bg hover:not-disabled:opacity-90",
  deny: "border-line bg-bg text-bad hover:not-disabled:border-bad hover:not-disabled:bg-bad-tint",
};

const SIZES = {
  small: "h-7 px-2 max-md:h-9 max-md:px-2.5",
  medium: "h-8 px-3 max-md:h-11 max-md:px-4",
};

export function buttonClass(tone: ButtonTone = "plain", size: keyof typeof SIZES = "medium"): string {
  return `${BASE} ${TONES[tone]} ${SIZES[size]}`;
}

interface ButtonProps extends ButtonHTMLAttributes<HTMLButtonElement> {
  tone?: ButtonTone;
  size?: keyof typeof SIZES;
  icon?: ReactNode;
  isBusy?: boolean;
  ref?: Ref<HTMLButtonElement>;
}

export function Button({ tone = "plain", size = "medium", icon, isBusy = false, children, className = "", disabled, ...rest }: ButtonProps) {
  return (
    <button type="button" {...rest} disabled={(disabled ?? false) || isBusy} className={`${buttonClass(tone, size)} ${className}`}>
      {isBusy ? <LoaderCircle size={15} className="animate-spin" aria-hidden /> : icon}
      {children}
    </button>
  );
}

interface IconButtonProps extends Omit<ButtonProps, "children" | "icon"> {
  label: string;
  children: ReactNode;
}

/** A button with only an icon. The label is its name and its tooltip. */
export function IconButton({ label, children, tone = "quiet", size = "medium", className = "", isBusy = false, disabled, ...rest }: IconButtonProps) {
  const box = size === "small" ? "size-7 max-md:size-9" : "size-8 max-md:size-11";
  return (
    <button type="button" aria-label={label} title={label} {...rest} disabled={(disabled ?? false) || isBusy} className={`${BASE} ${TONES[tone]} ${box} ${className}`}>
      {isBusy ? <LoaderCircle size={15} className="animate-spin" aria-hidden /> : children}
    </button>
  );
}
