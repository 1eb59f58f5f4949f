#include "samba/convert/gguf_around.h"

namespace samba {

namespace {

using Json = nlohmann::json;

AroundText of_template(const Json& processor) {
  AroundText around;
  if (processor.value("type", "") != "TemplateProcessing") return around;
  bool behind = false;
  for (const Json& part : processor.value("single", Json::array())) {
    if (part.contains("Sequence")) behind = true;
    const std::string piece = part.value("SpecialToken", Json::object()).value("id", "");
    if (!piece.empty()) (behind ? around.after : around.before).push_back(piece);
  }
  return around;
}

}  // namespace

AroundText around_text(const Json& file) {
  const Json processor = file.value("post_processor", Json());
  if (!processor.is_object()) return {};
  AroundText around = of_template(processor);
  for (const Json& part : processor.value("processors", Json::array())) {
    if (around.before.empty() && around.after.empty()) around = of_template(part);
  }
  return around;
}

std::string added_token_remark(const Json& file) {
  for (const Json& token : file.value("added_tokens", Json::array())) {
    for (const char* field : {"lstrip", "rstrip", "single_word"}) {
      if (!token.value(field, false)) continue;
      return "GGUF has no field for " + std::string(field) + " of the added token " + token.value("content", "");
    }
  }
  return "";
}

}  // namespace samba
