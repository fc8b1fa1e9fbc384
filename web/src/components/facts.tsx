import { SafeText } from "@/text/safe-text-view";

/** Names with their values. Unknown values are left out. */
export function Facts({ facts }: { facts: readonly (readonly [string, string | null | undefined])[] }) {
  const known = facts.filter((fact): fact is readonly [string, string] => fact[1] != null && fact[1] !== "");
  return (
    <dl className="grid grid-cols-[auto_1fr] gap-x-6 gap-y-1.5 text-control">
      {known.map(([name, value]) => (
        <div key={name} className="contents">
          <dt className="text-muted">{name}</dt>
          <dd className="[overflow-wrap:anywhere]"><SafeText text={value} /></dd>
        </div>
      ))}
    </dl>
  );
}
