//! Decides the reply to a request: a pure function of the scripts, the conversation and earlier failures.

use crate::answer::{Block, ModelAnswer, ModelReply, Refusal, ReplyContent, ScriptedCall, TextPiece};
use crate::conversation::{Conversation, ProgressMark, ScriptProgress, estimate_tokens};
use crate::script::{
    CutStep, ExpectStep, FailStep, FailureCount, Script, ScriptStep, Scripts, TokenUsage, pause_duration,
};
use crate::tools;
use std::collections::HashMap;
use std::time::Duration;

/// A reply and its position in a script.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Decision {
    pub(crate) reply: ModelReply,
    pub(crate) script: Option<String>,
    pub(crate) position: usize,
    /// The reason why the script could not be played as written.
    pub(crate) problem: Option<String>,
}

/// Counts the failures of each failing step. This is the only stored state: the conversation does not show failures.
#[derive(Debug, Default)]
pub(crate) struct FailureCounts(HashMap<FailureKey, u32>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct FailureKey {
    session: String,
    script: String,
    start_count: usize,
    step: usize,
}

impl FailureCounts {
    /// Returns true and counts if the step fails again.
    fn fails_again(&mut self, key: FailureKey, times: FailureCount) -> bool {
        let FailureCount::Count(most) = times else { return true };
        let count = self.0.entry(key).or_default();
        let again = *count < most;
        *count += u32::from(again);
        again
    }
}

pub(crate) fn decide_reply(
    scripts: &Scripts,
    conversation: &Conversation,
    session: &str,
    failures: &mut FailureCounts,
) -> Decision {
    if conversation.tools.is_empty() {
        // A side request, such as for a title.
        return answer_side_request(conversation);
    }
    let course = conversation.script_progress();
    let script = match &course.script_name {
        Some(name) => scripts.find_script(name),
        None => scripts.first(),
    };
    let Some(script) = script else {
        let there_are = scripts.names().collect::<Vec<_>>().join(", ");
        let place = ScriptPosition { start_count: course.start_count, completed_answers: 0 };
        let named = course.script_name.unwrap_or_default();
        return report_problem(conversation, place, None, format!("no script `{named}`; the scripts are: {there_are}"));
    };
    let cwd = script.cwd.as_deref().or_else(|| conversation.working_directory());
    let parts: Vec<_> = split_answers(script).map(|part| ResolvedAnswer::new(part, conversation, cwd)).collect();
    let place =
        ScriptPosition { start_count: course.start_count, completed_answers: count_completed_answers(&parts, &course) };
    match parts.into_iter().nth(place.completed_answers) {
        Some(ResolvedAnswer { part, calls: Ok(calls) }) => {
            let blocks = build_blocks(&part, calls);
            AnswerContext { script, conversation, position: place, session }.build_decision(&part, blocks, failures)
        }
        Some(ResolvedAnswer { calls: Err(why), .. }) => report_problem(conversation, place, Some(script), why),
        None => {
            let answer = text_answer(
                conversation,
                place,
                &script.name,
                format!("The script {} has no more steps.", script.name),
            );
            let script = Some(script.name.clone());
            Decision { reply: immediate_reply(answer), script, position: place.completed_answers, problem: None }
        }
    }
}

/// The position of a request in a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ScriptPosition {
    /// The number of script starts in this conversation.
    start_count: usize,
    /// The number of completed answers of the script.
    completed_answers: usize,
}

/// Counts the completed answers: a call's answer is complete with its results, a turn's last answer when the user
/// continues. An answer that broke off before its calls is repeated.
fn count_completed_answers(parts: &[ResolvedAnswer<'_>], course: &ScriptProgress) -> usize {
    let mut position = 0;
    let mut results = 0;
    for mark in &course.advances {
        let expected = parts.get(position).map_or(0, ResolvedAnswer::expected_results);
        match mark {
            ProgressMark::ToolResult => {
                results += 1;
                if results >= expected {
                    position += 1;
                    results = 0;
                }
            }
            ProgressMark::NextTurn => position += usize::from(expected == 0),
        }
    }
    // With only some results, the agent omits the others for good.
    position + usize::from(results > 0)
}

/// The steps of an answer and their calls for this agent.
struct ResolvedAnswer<'a> {
    part: AnswerSteps<'a>,
    calls: Result<Vec<ScriptedCall>, String>,
}

impl<'a> ResolvedAnswer<'a> {
    fn new(part: AnswerSteps<'a>, conversation: &Conversation, cwd: Option<&str>) -> Self {
        let calls = part
            .numbered_steps()
            .map(|(_, step)| tools::calls_for_step(step, conversation, cwd))
            .collect::<Result<Vec<_>, _>>();
        Self { part, calls: calls.map(|calls| calls.concat()) }
    }

    /// The number of expected results; 0 if it ends the turn.
    fn expected_results(&self) -> usize {
        self.calls.as_ref().map_or(0, Vec::len)
    }
}

/// The steps of one answer: up to a call or the end of the turn.
struct AnswerSteps<'a> {
    first_index: usize,
    steps: &'a [ScriptStep],
}

impl<'a> AnswerSteps<'a> {
    /// The steps with their index in the script.
    fn numbered_steps(&self) -> impl Iterator<Item = (usize, &'a ScriptStep)> {
        (self.first_index..).zip(self.steps)
    }
}

fn split_answers(script: &Script) -> impl Iterator<Item = AnswerSteps<'_>> {
    let ends = |step: &ScriptStep| step.is_call() || matches!(step, ScriptStep::End);
    let mut first = 0;
    let parts = script.steps.split_inclusive(ends).map(move |steps| {
        let part = AnswerSteps { first_index: first, steps };
        first += steps.len();
        part
    });
    // A final call needs another answer that ends the turn.
    let open = script.steps.last().is_none_or(ScriptStep::is_call);
    parts.chain(open.then_some(AnswerSteps { first_index: script.steps.len(), steps: &[] }))
}

fn build_blocks(part: &AnswerSteps<'_>, calls: Vec<ScriptedCall>) -> Vec<Block> {
    let mut blocks: Vec<_> = part.numbered_steps().filter_map(|(_, step)| text_block(step)).collect();
    blocks.extend(calls.into_iter().map(Block::Call));
    if !blocks.iter().any(|block| matches!(block, Block::Text(_) | Block::Call(_))) {
        blocks.push(Block::text("Done."));
    }
    blocks
}

fn text_block(step: &ScriptStep) -> Option<Block> {
    match step {
        ScriptStep::Say(text) => Some(Block::text(text.clone())),
        ScriptStep::Think(text) => Some(Block::Think(text.clone())),
        ScriptStep::Slow(slow) => {
            let pieces = slow.pieces.iter();
            let pieces = pieces.map(|text| TextPiece { pause: pause_duration(slow.pause), text: text.clone() });
            Some(Block::Text(pieces.collect()))
        }
        ScriptStep::Write(_)
        | ScriptStep::Edit(_)
        | ScriptStep::Run(_)
        | ScriptStep::Plan(_)
        | ScriptStep::Ask(_)
        | ScriptStep::Use(_)
        | ScriptStep::Parallel(_)
        | ScriptStep::Expect(_)
        | ScriptStep::Fail(_)
        | ScriptStep::Cut(_)
        | ScriptStep::Delay(_)
        | ScriptStep::Usage(_)
        | ScriptStep::End => None,
    }
}

/// The context of an answer.
struct AnswerContext<'a> {
    script: &'a Script,
    conversation: &'a Conversation,
    position: ScriptPosition,
    session: &'a str,
}

impl AnswerContext<'_> {
    /// Applies delays, usage, expectations and failures in the order of the script.
    fn build_decision(&self, part: &AnswerSteps<'_>, blocks: Vec<Block>, failures: &mut FailureCounts) -> Decision {
        let mut delay = Duration::ZERO;
        let mut cut = None;
        let mut usage = estimate_usage(self.conversation, &blocks);
        for (number, step) in part.numbered_steps() {
            match step {
                ScriptStep::Delay(wait) => delay += pause_duration(*wait),
                ScriptStep::Usage(reported) => usage = *reported,
                ScriptStep::Expect(ExpectStep { text, only_new: new })
                    if !self.conversation.has_received(text, *new) =>
                {
                    let since = if *new { " since the last answer" } else { "" };
                    let why = format!("step {}: expected the text {text:?}{since}", number + 1);
                    return report_problem(self.conversation, self.position, Some(self.script), why);
                }
                ScriptStep::Fail(fail) if failures.fails_again(self.failure_key(number), fail.times) => {
                    return self
                        .make_decision(ModelReply { delay, content: ReplyContent::Refusal(build_refusal(fail)) });
                }
                ScriptStep::Cut(CutStep { after_events: after, times })
                    if failures.fails_again(self.failure_key(number), *times) =>
                {
                    cut = Some(*after)
                }
                _ => {}
            }
        }
        let id = answer_id(&self.script.name, self.position);
        self.make_decision(ModelReply {
            delay,
            content: ReplyContent::Answer(ModelAnswer { id, blocks, usage, cut_after_events: cut }),
        })
    }

    fn failure_key(&self, step: usize) -> FailureKey {
        FailureKey {
            session: self.session.to_owned(),
            script: self.script.name.clone(),
            start_count: self.position.start_count,
            step,
        }
    }

    fn make_decision(&self, reply: ModelReply) -> Decision {
        Decision {
            reply,
            script: Some(self.script.name.clone()),
            position: self.position.completed_answers,
            problem: None,
        }
    }
}

fn build_refusal(fail: &FailStep) -> Refusal {
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

fn answer_side_request(conversation: &Conversation) -> Decision {
    let place = ScriptPosition { start_count: 0, completed_answers: 0 };
    let answer = text_answer(conversation, place, "aside", "ok".to_owned());
    Decision { reply: immediate_reply(answer), script: None, position: 0, problem: None }
}

/// Also answers the agent, so that its user sees the reason.
fn report_problem(
    conversation: &Conversation,
    place: ScriptPosition,
    script: Option<&Script>,
    why: String,
) -> Decision {
    let name = script.map_or("none", |script| script.name.as_str());
    let answer = text_answer(conversation, place, name, format!("The script failed: {why}."));
    Decision {
        reply: immediate_reply(answer),
        script: script.map(|script| script.name.clone()),
        position: place.completed_answers,
        problem: Some(why),
    }
}

fn immediate_reply(answer: ModelAnswer) -> ModelReply {
    ModelReply { delay: Duration::ZERO, content: ReplyContent::Answer(answer) }
}

fn text_answer(conversation: &Conversation, place: ScriptPosition, name: &str, text: String) -> ModelAnswer {
    let blocks = vec![Block::text(text)];
    ModelAnswer {
        id: answer_id(name, place),
        usage: estimate_usage(conversation, &blocks),
        blocks,
        cut_after_events: None,
    }
}

/// Stable and unique per position: agents identify calls by it.
fn answer_id(name: &str, place: ScriptPosition) -> String {
    let name: String = name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).collect();
    format!("{name}_{}_{}", place.start_count, place.completed_answers)
}

fn estimate_usage(conversation: &Conversation, blocks: &[Block]) -> TokenUsage {
    let letters = blocks.iter().map(|block| match block {
        Block::Think(text) => text.len(),
        Block::Text(pieces) => pieces.iter().map(|piece| piece.text.len()).sum(),
        Block::Call(call) => call.tool.len() + call.input.to_object().to_string().len(),
    });
    TokenUsage {
        input: conversation.estimated_tokens(),
        output: estimate_tokens(letters.sum()),
        cache_read: 0,
        cache_write: 0,
    }
}

#[cfg(test)]
#[path = "decision_tests.rs"]
mod tests;
