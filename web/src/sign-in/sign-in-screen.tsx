import { useState, type FormEvent } from "react";
import { describeFailure, Problem } from "@/api/problem";
import { Button } from "@/components/button";
import { Field, TextInput } from "@/components/field";
import { Notice } from "@/components/notice";
import { Logo } from "@/shell/logo";
import { InlineCode } from "@/text/inline-code";
import { signIn } from "./sign-in-state";

interface SignInScreenProps {
  failure?: unknown;
  onSignedIn?: () => void;
}

/** Asks for an API key. One-time links sign in without it. */
export function SignInScreen({ failure, onSignedIn }: SignInScreenProps) {
  const [apiKey, setApiKey] = useState("");
  const [problem, setProblem] = useState<unknown>(failure ?? null);
  const [isBusy, setBusy] = useState(false);

  const submit = (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    signIn({ api_key: apiKey.trim() })
      .then(() => onSignedIn?.())
      .catch(setProblem)
      .finally(() => {
        setBusy(false);
      });
  };

  return (
    <main className="flex h-dvh items-center justify-center bg-bg p-6">
      <form onSubmit={submit} className="flex w-full max-w-sm flex-col gap-5">
        <div className="flex items-center gap-3">
          <Logo size={36} />
          <h1 className="text-title font-semibold">Sign in to Atoll</h1>
        </div>
        {problem !== null && <Notice tone="bad"><InlineCode text={describeSignInFailure(problem)} /></Notice>}
        <Field label="API key" hint={<InlineCode text="Create one with `atoll token new`. The page does not store it." />}>
          {(control) => (
            <TextInput {...control} type="password" autoComplete="current-password" autoFocus value={apiKey} onChange={(event) => { setApiKey(event.target.value); }} />
          )}
        </Field>
        <Button type="submit" tone="primary" isBusy={isBusy} disabled={apiKey.trim() === ""} className="self-start">Sign in</Button>
        <p className="border-t border-line pt-4 text-control text-muted">
          On the server&apos;s machine, run <InlineCode text="`atoll open`" />: it opens this page signed in.
        </p>
      </form>
    </main>
  );
}

function describeSignInFailure(failure: unknown): string {
  if (failure instanceof Problem && failure.status === 401) {
    return "The server does not accept this key or link. A link works once and only for a short time: run `atoll open` for a new one.";
  }
  return describeFailure(failure);
}
