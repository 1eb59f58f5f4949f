// What a tokenizer.json puts around a text, and how its added tokens take the white space beside them: the parts of it
// for which GGUF has a field, and the others by name.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace samba {

struct AroundText {
  std::vector<std::string> before, after;  // pieces
};

// Of the template of the post-processor; of several the first that has one.
AroundText around_text(const nlohmann::json& file);

// Empty, or which added token is bound to what stands beside it (white space that it takes, letters that it must not
// touch): in a GGUF file it is one wherever it is written.
std::string added_token_remark(const nlohmann::json& file);

}  // namespace samba
