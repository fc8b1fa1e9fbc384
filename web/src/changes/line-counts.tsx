export function LineCounts({ added, removed }: { added: number; removed: number }) {
  if (added === 0 && removed === 0) return null;
  return (
    <span className="shrink-0 text-meta font-semibold">
      {added > 0 && <span className="text-ok">+{added}</span>} {removed > 0 && <span className="text-bad">−{removed}</span>}
    </span>
  );
}
