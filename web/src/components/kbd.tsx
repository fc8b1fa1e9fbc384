export function Kbd({ keys }: { keys: string }) {
  return (
    <span className="inline-flex gap-1">
      {keys.split(" ").map((key) => (
        <kbd key={key} className="min-w-5 rounded border border-line bg-raised px-1.5 text-center font-sans text-meta text-muted">{key}</kbd>
      ))}
    </span>
  );
}
