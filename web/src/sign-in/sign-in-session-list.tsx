import { useQuery } from "@tanstack/react-query";
import { LogOut, X } from "lucide-react";
import { queryClient } from "@/api/queries";
import { Button, IconButton } from "@/components/button";
import { FailureNotice } from "@/components/notice";
import { useAction } from "@/components/use-action";
import { useNow } from "@/shell/clock";
import { formatAge, formatDateTime } from "@/text/format";
import { SafeText } from "@/text/safe-text-view";
import { listSignIns, revokeSignIn, signOut } from "./sign-in-state";

const KEY = ["sign-in-sessions"] as const;

/** The browsers that are signed in as the user. */
export function SignInSessionList() {
  const sessions = useQuery({ queryKey: KEY, queryFn: listSignIns });
  const revoking = useAction("Not revoked");
  const leaving = useAction("Not signed out");
  const now = useNow(10);
  return (
    <div className="flex flex-col gap-3">
      {sessions.error !== null && <FailureNotice failure={sessions.error} onRetry={() => void sessions.refetch()} />}
      {sessions.data?.length === 0 && <p className="text-control text-muted">No browser is signed in.</p>}
      <ul className="flex flex-col">
        {sessions.data?.map((session) => (
          <li key={session.id} className="flex items-center gap-3 border-b border-line py-2 last:border-b-0">
            <div className="min-w-0 flex-1">
              <p className="truncate text-control"><SafeText text={session.user_agent ?? "Unknown browser"} />{session.is_current === true && <span className="ml-2 rounded-full bg-accent-tint px-2 text-meta font-semibold text-accent">this browser</span>}</p>
              <p className="text-meta text-muted">signed in {formatDateTime(session.created_at)}{session.last_used_at == null ? "" : ` · used ${formatAge(session.last_used_at, now)}`} · expires {formatDateTime(session.expires_at)}</p>
            </div>
            {session.is_current !== true && (
              <IconButton label="Revoke" size="small" isBusy={revoking.isBusy} onClick={() => void revoking.run(async () => { await revokeSignIn(session.id); await queryClient.invalidateQueries({ queryKey: KEY }); })}><X size={15} aria-hidden /></IconButton>
            )}
          </li>
        ))}
      </ul>
      <div><Button icon={<LogOut size={15} aria-hidden />} isBusy={leaving.isBusy} onClick={() => void leaving.run(signOut)}>Sign out</Button></div>
    </div>
  );
}
