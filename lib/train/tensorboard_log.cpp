#include "samba/train/tensorboard_log.h"

#include <chrono>

#include "samba/text/utf8.h"

namespace samba {

namespace {

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

SummaryValue scalar(const char* tag, double value) { return {tag, static_cast<float>(value)}; }

// Markdown of a text as it is: a block of code, its lines indented by four spaces. TensorBoard takes UTF-8 alone; other
// bytes (of a model that speaks bytes) become U+FFFD.
std::string markdown(std::string_view text) {
  std::string result = "    ";
  while (!text.empty()) {
    const Utf8Part part = next_utf8_part(text);
    if (part.valid && part.whole) {
      result += text.substr(0, part.length);
      if (text.front() == '\n') result += "    ";
    } else {
      result += "\xEF\xBF\xBD";
    }
    text.remove_prefix(part.length);
  }
  return result;
}

}  // namespace

TensorBoardLog::TensorBoardLog(const Path& folder, Index completed_steps) : file_(folder) {
  Event start;
  start.wall_time = seconds_since_1970();
  start.step = completed_steps + 1;
  start.session_start = true;
  file_.add(start);
}

void TensorBoardLog::add(Index step, std::vector<SummaryValue> values) {
  Event event;
  event.wall_time = seconds_since_1970();
  event.step = step;
  event.values = std::move(values);
  file_.add(event);
}

void TensorBoardLog::add(const StepMetrics& metrics, const StepFigures& figures, const std::string& unit) {
  std::vector<SummaryValue> values = {
      {"loss/training", metrics.loss}, scalar("loss/smoothed", figures.smoothed_loss), {"learning_rate", metrics.lr}};
  if (metrics.total_norm) values.push_back({"gradient_norm", *metrics.total_norm});
  if (figures.tokens_per_second)
    values.push_back({unit + "_per_second", static_cast<float>(*figures.tokens_per_second)});
  if (figures.mfu) values.push_back(scalar("mfu", *figures.mfu));
  add(metrics.step, std::move(values));
}

void TensorBoardLog::add(const EvaluationMetrics& metrics) {
  std::vector<SummaryValue> values = {scalar("loss/held_out", metrics.eval_loss)};
  values.push_back(metrics.accuracy ? scalar("accuracy", *metrics.accuracy)
                                    : scalar("bits_per_byte", metrics.bits_per_byte));
  add(metrics.step, std::move(values));
}

void TensorBoardLog::add_sample(Index step, Index number, const std::string& text) {
  add(step, {{"samples/" + std::to_string(number), markdown(text)}});
}

}  // namespace samba
