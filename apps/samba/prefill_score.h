// What samba prefill says about how well a model predicts: scores of texts, choices among endings.
#pragma once

#include <string>
#include <vector>

#include "model_input.h"
#include "samba/generate/scoring.h"

namespace samba::apps {

// Every prompt: tokens, log-likelihood, perplexity, bits per byte (per token without a tokenizer). As JSON lines: one a
// token {"index", "position", "token", "text", "logprob"}, then one for the whole.
std::string score_texts(const LoadedModel& model, const std::vector<Prompt>& prompts, const ScoreOptions& options,
                        const CommonOptions& common);

// A file of JSON lines {"prompt", "choices": [...], "answer": number or one of the choices}: which choice is likeliest
// behind the prompt, and how often that is the answer.
std::string score_choices(const LoadedModel& model, const std::string& file, const CommonOptions& common);

}  // namespace samba::apps
