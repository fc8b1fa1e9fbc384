/** Every word of the query occurs in the text, in any order and case. */
export function matchesWords(query: string, text: string): boolean {
  const lower = text.toLowerCase();
  return query.toLowerCase().split(/\s+/).every((word) => lower.includes(word));
}
