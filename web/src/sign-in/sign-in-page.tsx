import { useEffect, useRef, useState } from "react";
import { useNavigate } from "@tanstack/react-router";
import { Skeleton } from "@/components/notice";
import { SignInScreen } from "./sign-in-screen";
import { signIn } from "./sign-in-state";

/** Handles a one-time link: `/sign-in#code=…`. The code is in the fragment, so no log contains it. */
export function SignInPage() {
  const navigate = useNavigate();
  const [failure, setFailure] = useState<unknown>(null);
  const [code] = useState(() => new URLSearchParams(location.hash.slice(1)).get("code"));
  const isSent = useRef(false);

  useEffect(() => {
    if (code === null || isSent.current) return;
    isSent.current = true;
    history.replaceState(null, "", location.pathname);
    signIn({ code })
      .then(() => navigate({ to: "/", replace: true }))
      .catch(setFailure);
  }, [code, navigate]);

  if (code !== null && failure === null) return <Skeleton label="Signing in" />;
  return <SignInScreen key={String(failure)} failure={failure} onSignedIn={() => void navigate({ to: "/", replace: true })} />;
}
