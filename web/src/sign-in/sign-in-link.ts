export interface SignInLink {
  code: string | null;
  /** The page to open after it. */
  to: string;
}

/** Reads the fragment of a one-time link. A target of another origin becomes Home. */
export function readSignInLink(fragment: string): SignInLink {
  const fields = new URLSearchParams(fragment.replace(/^#/, ""));
  const target = fields.get("to") ?? "/";
  const isOwnPath = /^\/(?![/\\])/.test(target) && !target.startsWith("/sign-in");
  return { code: fields.get("code"), to: isOwnPath ? target : "/" };
}
