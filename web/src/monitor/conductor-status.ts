/** The number of agents in each phase, the most frequent first. */
export function phaseCounts(phases: Readonly<Record<string, number>>): string {
  const counts = Object.entries(phases).sort(([one, a], [two, b]) => b - a || one.localeCompare(two));
  return counts.map(([phase, count]) => `${count} ${phase}`).join(", ");
}

/** The score of an anomaly, with the number of rounds in a row that have one. */
export function shownAnomaly({ score, in_a_row: rounds }: { score: number; in_a_row: number }): string {
  return rounds > 1 ? `${score.toFixed(2)}, ${rounds} in a row` : score.toFixed(2);
}
