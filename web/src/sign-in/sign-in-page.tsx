import { useEffect, useRef, useState } from "react";
import { useRouter } from "@tanstack/react-router";
import { Skeleton } from "@/components/notice";
import { SignInScreen } from "./sign-in-screen";
import { readSignInLink } from "./sign-in-link";
import { signIn } from "./sign-in-state";

/** Handles a one-time link: `/sign-in#code=…&to=PATH`. The code is in the fragment, so no log contains it. */
export function SignInPage() {
  const { history } = useRouter();
  const [failure, setFailure] = useState<unknown>(null);
  const [{ code, to }] = useState(() => readSignInLink(location.hash));
  const isSent = useRef(false);

  useEffect(() => {
    if (code === null || isSent.current) return;
    isSent.current = true;
    globalThis.history.replaceState(null, "", location.pathname);
    signIn({ code })
      .then(() => { history.replace(to); })
      .catch(setFailure);
  }, [code, to, history]);

  if (code !== null && failure === null) return <Skeleton label="Signing in" />;
  return <SignInScreen key={String(failure)} failure={failure} onSignedIn={() => { history.replace(to); }} />;
}
