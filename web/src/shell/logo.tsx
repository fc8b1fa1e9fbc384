/** Atoll's mark: an open ring around a lagoon. */
export function Logo({ size = 24 }: { size?: number }) {
  return (
    <svg width={size} height={size} viewBox="0 0 32 32" aria-hidden className="shrink-0">
      <rect width="32" height="32" rx="8" fill="var(--accent)" />
      <path d="M16 7a9 9 0 1 1-7.8 4.5" fill="none" stroke="var(--on-accent)" strokeWidth="3.2" strokeLinecap="round" />
      <circle cx="16" cy="16" r="2.8" fill="var(--on-accent)" />
    </svg>
  );
}
