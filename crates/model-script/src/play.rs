//! Which answer a request gets: a pure rule over the scripts, the conversation, and what has failed before.

use crate::answer::{Answer, Block, Call, Content, Piece, Refusal, Reply};
use crate::conversation::{Conversation, Course, Mark, tokens};
use crate::script::{Cut, Expect, Fail, Script, Scripts, Step, Times, Usage, seconds};
use crate::tools;
use std::collections::HashMap;
use std::time::Duration;

/// What was decided, and where in which script that stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Decision {
    pub(crate) reply: Reply,
    pub(crate) script: Option<String>,
    pub(crate) position: usize,
    /// Why the script could not be played as it is written.
    pub(crate) problem: Option<String>,
}

/// How often each failing step has failed. This is all that is remembered: a step that fails once must know that it
/// did, and the conversation does not show it.
#[derive(Debug, Default)]
pub(crate) struct Failures(HashMap<FailureKey, u32>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct FailureKey {
    session: String,
    script: String,
    begun: usize,
    step: usize,
}

impl Failures {
    /// Whether the step fails this time too; counts it if so.
    fn again(&mut self, key: FailureKey, times: Times) -> bool {
        let Times::Count(most) = times else { return true };
        let count = self.0.entry(key).or_default();
        let again = *count < most;
        *count += u32::from(again);
        again
    }
}

pub(crate) fn decide(scripts: &Scripts, asked: &Conversation, session: &str, failures: &mut Failures) -> Decision {
    if asked.tools.is_empty() {
        // A side question, such as one for a title.
        return aside(asked);
    }
    let course = asked.course();
    let script = match &course.named {
        Some(name) => scripts.named(name),
        None => scripts.first(),
    };
    let Some(script) = script else {
        let there_are = scripts.names().collect::<Vec<_>>().join(", ");
        let place = Place { begun: course.begun, position: 0 };
        let named = course.named.unwrap_or_default();
        return trouble(asked, place, None, format!("there is no script `{named}`; there are: {there_are}"));
    };
    let cwd = script.cwd.as_deref().or_else(|| asked.working_directory());
    let parts: Vec<_> = parts(script).map(|part| Resolved::new(part, asked, cwd)).collect();
    let place = Place { begun: course.begun, position: position(&parts, &course) };
    match parts.into_iter().nth(place.position) {
        Some(Resolved { part, calls: Ok(calls) }) => {
            let blocks = blocks(&part, calls);
            Playing { script, asked, place, session }.answer(&part, blocks, failures)
        }
        Some(Resolved { calls: Err(why), .. }) => trouble(asked, place, Some(script), why),
        None => {
            let answer = plain(asked, place, &script.name, format!("The script {} has no more steps.", script.name));
            let script = Some(script.name.clone());
            Decision { reply: at_once(answer), script, position: place.position, problem: None }
        }
    }
}

/// Where in a script a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    /// How often scripts have been begun in this conversation.
    begun: usize,
    /// How many answers of the script have been given.
    position: usize,
}

/// How many answers the conversation shows to have been given in whole: a call's when its results are there, a turn's
/// last one when somebody went on. One that broke off before its calls is given again.
fn position(parts: &[Resolved<'_>], course: &Course) -> usize {
    let mut position = 0;
    let mut results = 0;
    for mark in &course.marks {
        let wanted = parts.get(position).map_or(0, Resolved::results);
        match mark {
            Mark::Result => {
                results += 1;
                if results >= wanted {
                    position += 1;
                    results = 0;
                }
            }
            Mark::WentOn => position += usize::from(wanted == 0),
        }
    }
    // Some results but not all: the agent leaves the others out for good.
    position + usize::from(results > 0)
}

/// An answer's steps with the calls that they are for this agent.
struct Resolved<'a> {
    part: Part<'a>,
    calls: Result<Vec<Call>, String>,
}

impl<'a> Resolved<'a> {
    fn new(part: Part<'a>, asked: &Conversation, cwd: Option<&str>) -> Self {
        let calls = part.steps().map(|(_, step)| tools::calls(step, asked, cwd)).collect::<Result<Vec<_>, _>>();
        Self { part, calls: calls.map(|calls| calls.concat()) }
    }

    /// How many results come back for it; none if it ends the turn.
    fn results(&self) -> usize {
        self.calls.as_ref().map_or(0, Vec::len)
    }
}

/// The steps of one answer: up to the calls that the agent must make before it comes back, or to the turn's end.
struct Part<'a> {
    first: usize,
    steps: &'a [Step],
}

impl<'a> Part<'a> {
    /// Each step with its number in the script.
    fn steps(&self) -> impl Iterator<Item = (usize, &'a Step)> {
        (self.first..).zip(self.steps)
    }
}

fn parts(script: &Script) -> impl Iterator<Item = Part<'_>> {
    let ends = |step: &Step| step.is_call() || matches!(step, Step::End);
    let mut first = 0;
    let parts = script.steps.split_inclusive(ends).map(move |steps| {
        let part = Part { first, steps };
        first += steps.len();
        part
    });
    // After a call at the very end the turn still has to be ended.
    let open = script.steps.last().is_none_or(Step::is_call);
    parts.chain(open.then_some(Part { first: script.steps.len(), steps: &[] }))
}

fn blocks(part: &Part<'_>, calls: Vec<Call>) -> Vec<Block> {
    let mut blocks: Vec<_> = part.steps().filter_map(|(_, step)| words(step)).collect();
    blocks.extend(calls.into_iter().map(Block::Call));
    if !blocks.iter().any(|block| matches!(block, Block::Text(_) | Block::Call(_))) {
        blocks.push(Block::text("Done."));
    }
    blocks
}

fn words(step: &Step) -> Option<Block> {
    match step {
        Step::Say(text) => Some(Block::text(text.clone())),
        Step::Think(text) => Some(Block::Think(text.clone())),
        Step::Slow(slow) => {
            let pieces = slow.pieces.iter();
            let pieces = pieces.map(|text| Piece { pause: seconds(slow.pause), text: text.clone() });
            Some(Block::Text(pieces.collect()))
        }
        Step::Write(_)
        | Step::Edit(_)
        | Step::Run(_)
        | Step::Plan(_)
        | Step::Ask(_)
        | Step::Use(_)
        | Step::Parallel(_)
        | Step::Expect(_)
        | Step::Fail(_)
        | Step::Cut(_)
        | Step::Delay(_)
        | Step::Usage(_)
        | Step::End => None,
    }
}

/// An answer that is about to be given.
struct Playing<'a> {
    script: &'a Script,
    asked: &'a Conversation,
    place: Place,
    session: &'a str,
}

impl Playing<'_> {
    /// What stands around the words of an answer, in the order of the script.
    fn answer(&self, part: &Part<'_>, blocks: Vec<Block>, failures: &mut Failures) -> Decision {
        let mut delay = Duration::ZERO;
        let mut cut = None;
        let mut usage = counted(self.asked, &blocks);
        for (number, step) in part.steps() {
            match step {
                Step::Delay(wait) => delay += seconds(*wait),
                Step::Usage(given) => usage = *given,
                Step::Expect(Expect { text, new }) if !self.asked.holds(text, *new) => {
                    let since = if *new { " since the last answer" } else { "" };
                    let why = format!("step {}: expected to be told {text:?}{since}, and was not", number + 1);
                    return trouble(self.asked, self.place, Some(self.script), why);
                }
                Step::Fail(fail) if failures.again(self.key(number), fail.times) => {
                    return self.decision(Reply { delay, content: Content::Refusal(refusal(fail)) });
                }
                Step::Cut(Cut { after, times }) if failures.again(self.key(number), *times) => cut = Some(*after),
                _ => {}
            }
        }
        let id = id(&self.script.name, self.place);
        self.decision(Reply { delay, content: Content::Answer(Answer { id, blocks, usage, cut }) })
    }

    fn key(&self, step: usize) -> FailureKey {
        FailureKey { session: self.session.to_owned(), script: self.script.name.clone(), begun: self.place.begun, step }
    }

    fn decision(&self, reply: Reply) -> Decision {
        Decision { reply, script: Some(self.script.name.clone()), position: self.place.position, problem: None }
    }
}

fn refusal(fail: &Fail) -> Refusal {
    let (kind, message) = match fail.status {
        401 => ("authentication_error", "The key is not valid."),
        403 => ("permission_error", "The key may not do this."),
        400 => ("invalid_request_error", "The request is not valid."),
        429 => ("rate_limit_error", "Too many requests."),
        529 => ("overloaded_error", "Overloaded"),
        _ => ("api_error", "The model failed."),
    };
    Refusal {
        status: fail.status,
        retry_after: fail.retry_after,
        kind: fail.kind.clone().unwrap_or_else(|| kind.to_owned()),
        message: fail.message.clone().unwrap_or_else(|| message.to_owned()),
        body: fail.body.clone(),
    }
}

fn aside(asked: &Conversation) -> Decision {
    let place = Place { begun: 0, position: 0 };
    let answer = plain(asked, place, "aside", "ok".to_owned());
    Decision { reply: at_once(answer), script: None, position: 0, problem: None }
}

/// The agent is told too, so that a person who looks at it sees why it ends.
fn trouble(asked: &Conversation, place: Place, script: Option<&Script>, why: String) -> Decision {
    let name = script.map_or("none", |script| script.name.as_str());
    let answer = plain(asked, place, name, format!("The script failed: {why}."));
    Decision {
        reply: at_once(answer),
        script: script.map(|script| script.name.clone()),
        position: place.position,
        problem: Some(why),
    }
}

fn at_once(answer: Answer) -> Reply {
    Reply { delay: Duration::ZERO, content: Content::Answer(answer) }
}

fn plain(asked: &Conversation, place: Place, name: &str, text: String) -> Answer {
    let blocks = vec![Block::text(text)];
    Answer { id: id(name, place), usage: counted(asked, &blocks), blocks, cut: None }
}

/// The same for the same place, and another for every other one: agents tell calls apart by it.
fn id(name: &str, place: Place) -> String {
    let name: String = name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).collect();
    format!("{name}_{}_{}", place.begun, place.position)
}

fn counted(asked: &Conversation, blocks: &[Block]) -> Usage {
    let letters = blocks.iter().map(|block| match block {
        Block::Think(text) => text.len(),
        Block::Text(pieces) => pieces.iter().map(|piece| piece.text.len()).sum(),
        Block::Call(call) => call.tool.len() + call.input.object().to_string().len(),
    });
    Usage { input: asked.tokens(), output: tokens(letters.sum()), cache_read: 0, cache_write: 0 }
}

#[cfg(test)]
#[path = "play_tests.rs"]
mod tests;
