import { useState, type FormEvent } from "react";
import { useQuery } from "@tanstack/react-query";
import { api, unwrap } from "@/api/client";
import { queryClient } from "@/api/queries";
import type { Sandbox, Schemas } from "@/api/types";
import { Button } from "@/components/button";
import { Field, Select, TextInput } from "@/components/field";
import { FailureNotice } from "@/components/notice";
import { reportSuccess } from "@/components/toast";
import { useAction } from "@/components/use-action";
import { hasEnded } from "@/sandboxes/status";
import { formatBytes, plural } from "@/text/format";
import { SafeText } from "@/text/safe-text-view";
import { DetailSection } from "./details-panel";

type Policy = Schemas["NetworkPolicy"];

export const NETWORK_WORDS: Record<Policy, string> = {
  none: "No network",
  allow: "Only these hosts",
  packages: "Package registries",
  all: "All hosts",
};

/** The network policy of a sandbox and its traffic by host. */
export function NetworkSection({ sandbox }: { sandbox: Sandbox }) {
  const network = useQuery({
    queryKey: ["network", sandbox.id],
    queryFn: () => unwrap(api.GET("/api/v1/sandboxes/{id}/network", { params: { path: { id: sandbox.id } } })),
  });
  if (network.error !== null) return <FailureNotice failure={network.error} onRetry={() => void network.refetch()} />;
  const status = network.data;
  if (status === undefined) return null;
  return (
    <DetailSection title="Network">
      {hasEnded(sandbox) ? <p className="text-control">{NETWORK_WORDS[status.policy]}</p> : <PolicyForm key={`${status.policy}${status.allow.join()}`} sandboxId={sandbox.id} policy={status.policy} allow={status.allow} />}
      {status.hosts.length > 0 && (
        <table className="mt-3 w-full text-control">
          <thead><tr className="text-left text-meta text-muted"><th className="py-1 font-normal">Host</th><th className="font-normal">Traffic</th><th className="text-right font-normal">Refused</th></tr></thead>
          <tbody>
            {status.hosts.map((host) => (
              <tr key={`${host.host}:${host.port}`} className="border-t border-line">
                <td className="py-1 [overflow-wrap:anywhere]"><SafeText text={`${host.host}:${host.port}`} /></td>
                <td className="text-muted">{plural(host.connections, "connection")}, {formatBytes(host.sent + host.received)}</td>
                <td className={`text-right ${host.refused > 0 ? "text-attention" : "text-muted"}`}>{host.refused}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </DetailSection>
  );
}

function PolicyForm({ sandboxId, policy, allow }: { sandboxId: string; policy: Policy; allow: readonly string[] }) {
  const [chosen, setChosen] = useState<Policy>(policy);
  const [hosts, setHosts] = useState(allow.join(", "));
  const saving = useAction("Network policy not changed");
  const submit = (event: FormEvent) => {
    event.preventDefault();
    void saving.run(async () => {
      const list = chosen === "allow" ? hosts.split(/[\s,]+/).filter(Boolean) : [];
      await unwrap(api.PUT("/api/v1/sandboxes/{id}/network", { params: { path: { id: sandboxId } }, body: { policy: chosen, allow: list } }));
      await queryClient.invalidateQueries({ queryKey: ["network", sandboxId] });
      reportSuccess("Network policy changed");
    });
  };
  return (
    <form onSubmit={submit} className="flex flex-wrap items-end gap-3">
      <div className="w-48">
        <Field label="Policy">
          {(control) => (
            <Select {...control} value={chosen} onChange={(event) => { setChosen(event.target.value as Policy); }}>
              {Object.entries(NETWORK_WORDS).map(([value, word]) => <option key={value} value={value}>{word}</option>)}
            </Select>
          )}
        </Field>
      </div>
      {chosen === "allow" && <div className="min-w-48 flex-1"><Field label="Hosts">{(control) => <TextInput {...control} placeholder="example.org, *.example.com" value={hosts} onChange={(event) => { setHosts(event.target.value); }} />}</Field></div>}
      <Button type="submit" isBusy={saving.isBusy} disabled={chosen === policy && hosts === allow.join(", ")}>Change</Button>
    </form>
  );
}
