#include "samba/train/run_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>

#include "samba/core/error.h"
#include "samba/model/registry.h"
#include "samba/model/stack_config.h"
#include "samba/plot/svg.h"

namespace samba {

namespace {

using nlohmann::ordered_json;
using plot::escaped;

constexpr std::size_t kMostHoverSteps = 1500;  // of a run; more are thinned
constexpr const char* kNothing = "\xE2\x80\x93";

std::string number(double value, const char* pattern = "%.5g") {
  char text[48];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

// "1234567" as "1 234 567", with narrow spaces.
std::string count(std::uint64_t value) {
  std::string text = std::to_string(value);
  for (std::size_t at = text.size(); at > 3;) {
    at -= 3;
    text.insert(at, "\xE2\x80\xAF");
  }
  return text;
}

const ordered_json& at(const ordered_json& config, const char* pointer) {
  static const ordered_json null;
  const ordered_json::json_pointer place(pointer);
  return config.is_object() && config.contains(place) ? config.at(place) : null;
}

std::string text_of(const ordered_json& value) {
  if (value.is_null()) return kNothing;
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer() && value >= 0) return count(value.get<std::uint64_t>());
  if (value.is_number_float()) return number(value.get<double>());
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// "6: 3 mamba3, 3 attention"
std::string layers_text(const ordered_json& layers) {
  if (!layers.is_array()) return kNothing;
  std::vector<std::pair<std::string, int>> kinds;
  for (const ordered_json& layer : layers) {
    const ordered_json& kind = layer.is_object() ? at(layer, "/kind") : layer;
    const std::string name = kind.is_string() ? kind.get<std::string>() : "?";
    const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const auto& one) { return one.first == name; });
    if (found == kinds.end()) {
      kinds.emplace_back(name, 1);
    } else {
      ++found->second;
    }
  }
  std::string text = std::to_string(layers.size()) + ": ";
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(kinds[i].second) + " " + kinds[i].first;
  }
  return text;
}

std::string parameters_text(const ordered_json& model) {
  if (!model.is_object() || model.contains("kind")) return kNothing;
  try {
    return count(static_cast<std::uint64_t>(Registry(stack_config_from_json(nlohmann::json(model), "/model")).total()));
  } catch (const Error&) {
    return kNothing;  // of a configuration that this version does not read
  }
}

std::string optimizer_text(const ordered_json& optimizer) {
  if (!optimizer.is_object()) return kNothing;
  std::string text = text_of(at(optimizer, "/kind"));
  for (const auto& [name, value] : optimizer.items()) {
    if (name != "kind" && !value.is_null()) text += ", " + name + " " + text_of(value);
  }
  return text;
}

std::string schedule_text(const ordered_json& config) {
  const ordered_json& schedule = at(config, "/schedule");
  if (!schedule.is_object()) return "constant " + text_of(at(config, "/optimizer/lr"));
  return text_of(at(schedule, "/kind")) + ", " + text_of(at(schedule, "/peak_lr")) + " to " +
         text_of(at(schedule, "/min_lr")) + ", " + text_of(at(schedule, "/warmup_steps")) + " steps of warm-up";
}

std::string batch_text(const ordered_json& config) {
  const ordered_json& length = at(config, "/batch/length");
  std::string text = text_of(at(config, "/batch/rows"));
  if (!length.is_null()) text += " \xC3\x97 " + text_of(length);
  const ordered_json& parts = at(config, "/batch/accumulation_steps");
  return parts.is_number_integer() && parts != 1 ? text + " in " + text_of(parts) + " parts" : text;
}

const RecordedEvaluation* best_of(const RunRecord& run) {
  const auto best = std::min_element(run.evaluations.begin(), run.evaluations.end(),
                                     [](const auto& a, const auto& b) { return a.loss < b.loss; });
  return best == run.evaluations.end() ? nullptr : &*best;
}

double seconds_of(const RunRecord& run) {
  double seconds = 0.0;
  for (const RecordedStep& step : run.steps) seconds += step.seconds;
  return seconds;
}

std::string time_text(double seconds) {
  if (seconds < 60.0) return number(seconds, "%.1f s");
  const auto whole = static_cast<long long>(seconds + 0.5);
  return whole < 3600 ? std::to_string(whole / 60) + " min " + std::to_string(whole % 60) + " s"
                      : std::to_string(whole / 3600) + " h " + std::to_string(whole / 60 % 60) + " min";
}

struct Row {
  std::string name;
  std::function<std::string(const RunRecord&)> text;
  bool digest = false;  // shown short, the whole under the pointer
};

std::string evaluation_text(const RecordedEvaluation& evaluation) {
  std::string text = number(evaluation.loss) + " at step " + count(static_cast<std::uint64_t>(evaluation.step));
  if (evaluation.bits_per_byte) text += ", " + number(*evaluation.bits_per_byte, "%.4g") + " bits per byte";
  if (evaluation.accuracy) text += ", " + number(100.0 * *evaluation.accuracy, "%.4g") + " % right";
  return text;
}

std::vector<Row> table_rows(double smoothed_steps) {
  const auto field = [](const char* pointer) {
    return [pointer](const RunRecord& run) { return text_of(at(run.config, pointer)); };
  };
  std::vector<Row> rows;
  rows.push_back({"Steps", [](const RunRecord& run) {
                    const std::string taken = count(static_cast<std::uint64_t>(run.steps.back().step));
                    const ordered_json& all = at(run.config, "/steps");
                    return all.is_number_integer() ? taken + " of " + text_of(all) : taken;
                  }});
  rows.push_back({"Read", [](const RunRecord& run) { return count(run.steps.back().tokens) + " " + unit_of(run); }});
  rows.push_back({"Last loss", [](const RunRecord& run) { return number(run.steps.back().loss); }});
  rows.push_back({"Last loss, smoothed", [smoothed_steps](const RunRecord& run) {
                    return number(smoothed_losses(run, smoothed_steps).back());
                  }});
  rows.push_back({"Held out, best", [](const RunRecord& run) {
                    const RecordedEvaluation* best = best_of(run);
                    return best == nullptr ? std::string(kNothing) : evaluation_text(*best);
                  }});
  rows.push_back({"Held out, last", [](const RunRecord& run) {
                    return run.evaluations.empty() ? std::string(kNothing) : evaluation_text(run.evaluations.back());
                  }});
  rows.push_back({"Time in steps", [](const RunRecord& run) {
                    const double seconds = seconds_of(run);
                    if (seconds <= 0.0) return std::string(kNothing);
                    const double rate = static_cast<double>(run.steps.back().tokens - run.steps.front().tokens) /
                                        std::max(seconds - run.steps.front().seconds, 1e-9);
                    return time_text(seconds) +
                           (run.steps.size() > 1 ? ", " + number(rate, "%.4g") + " " + unit_of(run) + "/s" : "");
                  }});
  rows.push_back({"Parameters", [](const RunRecord& run) { return parameters_text(at(run.config, "/model")); }});
  rows.push_back({"Layers", [](const RunRecord& run) { return layers_text(at(run.config, "/model/layers")); }});
  rows.push_back({"Width", field("/model/d_model")});
  rows.push_back({"Vocabulary", field("/model/vocab")});
  rows.push_back({"Batch", [](const RunRecord& run) { return batch_text(run.config); }});
  rows.push_back({"Optimizer", [](const RunRecord& run) { return optimizer_text(at(run.config, "/optimizer")); }});
  rows.push_back({"Learning rate", [](const RunRecord& run) { return schedule_text(run.config); }});
  rows.push_back({"Seed", field("/seed")});
  rows.push_back({"Order of the data", field("/data/order")});
  rows.push_back({"SHA-256 of the data", field("/data/sha256"), true});
  rows.push_back({"Identity card", [](const RunRecord& run) { return run.card.empty() ? kNothing : run.card; }, true});
  rows.push_back(
      {"Newest checkpoint", [](const RunRecord& run) { return run.checkpoint.empty() ? kNothing : run.checkpoint; }});
  rows.push_back(
      {"Its SHA-256", [](const RunRecord& run) { return run.sha256.empty() ? kNothing : run.sha256; }, true});
  return rows;
}

std::string digest_cell(const std::string& digest) {
  constexpr std::size_t kShort = 16;
  if (digest.size() <= kShort) return escaped(digest);
  return "<details class=\"digest\"><summary><code>" + escaped(digest.substr(0, kShort)) +
         "\xE2\x80\xA6</code></summary><code>" + escaped(digest) + "</code></details>";
}

std::string swatch(std::size_t run) {
  return "<span class=\"swatch b" + std::to_string(run % plot::kSeriesColors) + "\" aria-hidden=\"true\"></span>";
}

std::string table_html(std::span<const RunRecord> runs, double smoothed_steps) {
  std::string html =
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"runs-caption\">\n<table>\n";
  html += std::string("<caption id=\"runs-caption\">The run") + (runs.size() > 1 ? "s; what differs is marked" : "") +
          "</caption>\n<thead><tr><th scope=\"col\"><span class=\"hidden\">Figure</span></th>";
  for (std::size_t i = 0; i < runs.size(); ++i)
    html += "<th scope=\"col\">" + swatch(i) + escaped(runs[i].name) + "</th>";
  html += "</tr></thead>\n<tbody>\n";
  for (const Row& row : table_rows(smoothed_steps)) {
    std::vector<std::string> texts;
    for (const RunRecord& run : runs) texts.push_back(row.text(run));
    const auto is = [](const char* text) { return [text](const std::string& one) { return one == text; }; };
    if (std::all_of(texts.begin(), texts.end(), is(kNothing))) continue;
    const bool differs = std::adjacent_find(texts.begin(), texts.end(), std::not_equal_to<>()) != texts.end();
    html += std::string("<tr") + (differs ? " class=\"differs\"" : "") + "><th scope=\"row\">" + row.name + "</th>";
    for (const std::string& text : texts) {
      html += "<td>" + (row.digest ? digest_cell(text) : escaped(text)) + "</td>";
    }
    html += "</tr>\n";
  }
  return html + "</tbody>\n</table>\n</div>\n";
}

// Numbers that JSON can hold, short.
std::string short_number(double value) { return std::isfinite(value) ? number(value, "%.6g") : "null"; }

template <class Lines, class Value>
std::string list(const Lines& lines, const Value& value) {
  std::string text = "[";
  for (const auto& line : lines) text += (text.size() > 1 ? "," : "") + value(line);
  return text + "]";
}

// What the script shows below the pointer.
std::string hover_json(const RunRecord& run, double smoothed_steps) {
  struct Kept {
    RecordedStep step;
    double smoothed = 0.0;
  };
  const std::vector<double> smoothed = smoothed_losses(run, smoothed_steps);
  std::vector<Kept> kept;
  const std::size_t stride = (run.steps.size() + kMostHoverSteps - 1) / kMostHoverSteps;
  for (std::size_t i = 0; i < run.steps.size(); ++i) {
    if (i % stride == 0 || i + 1 == run.steps.size()) kept.push_back({run.steps[i], smoothed[i]});
  }
  const auto step_of = [](const auto& line) { return std::to_string(line.step); };
  return "{\"step\":" + list(kept, [](const Kept& k) { return std::to_string(k.step.step); }) +
         ",\"tokens\":" + list(kept, [](const Kept& k) { return std::to_string(k.step.tokens); }) +
         ",\"loss\":" + list(kept, [](const Kept& k) { return short_number(k.step.loss); }) +
         ",\"smoothed\":" + list(kept, [](const Kept& k) { return short_number(k.smoothed); }) +
         ",\"lr\":" + list(kept, [](const Kept& k) { return short_number(k.step.lr); }) + ",\"norm\":" +
         list(kept, [](const Kept& k) { return k.step.total_norm ? short_number(*k.step.total_norm) : "null"; }) +
         ",\"evalStep\":" + list(run.evaluations, step_of) + ",\"evalTokens\":" +
         list(run.evaluations, [&](const RecordedEvaluation& e) { return std::to_string(run.tokens_at(e.step)); }) +
         ",\"evalLoss\":" + list(run.evaluations, [](const RecordedEvaluation& e) { return short_number(e.loss); }) +
         "}";
}

std::string places_json(const std::vector<plot::PanelPlace>& places) {
  return list(places, [](const plot::PanelPlace& place) {
    const auto exact = [](double value) { return std::isfinite(value) ? number(value, "%.12g") : "0"; };
    return "{\"left\":" + exact(place.left) + ",\"right\":" + exact(place.right) + ",\"top\":" + exact(place.top) +
           ",\"bottom\":" + exact(place.bottom) + ",\"first\":" + exact(place.first) +
           ",\"last\":" + exact(place.last) + ",\"low\":" + exact(place.low) + ",\"high\":" + exact(place.high) +
           ",\"log\":" + (place.logarithmic ? "true" : "false") + "}";
  });
}

// Text of JSON inside a script element: no "</script" can arise.
std::string in_script(std::string json) {
  for (std::size_t at = 0; (at = json.find('<', at)) != std::string::npos;) json.replace(at, 1, "\\u003c");
  return json;
}

std::string colors(bool dark) {
  std::string css;
  const auto add = [&](const std::string& name, plot::Paint paint) {
    css += "--" + name + ":" + plot::hex_text(plot::color_of(paint, dark)) + ";";
  };
  add("background", {plot::Ink::background});
  add("text", {plot::Ink::text});
  add("muted", {plot::Ink::muted});
  add("grid", {plot::Ink::grid});
  for (int i = 0; i < plot::kSeriesColors; ++i) add("s" + std::to_string(i), {plot::Ink::series, i});
  return css + (dark ? "color-scheme:dark;" : "color-scheme:light;");
}

std::string style() {
  std::string css = ":root{" + colors(false) + "}\n@media (prefers-color-scheme:dark){:root{" + colors(true) +
                    "}}\n:root[data-theme=light]{" + colors(false) + "}\n:root[data-theme=dark]{" + colors(true) +
                    "}\n";
  for (int i = 0; i < plot::kSeriesColors; ++i) {
    const std::string n = std::to_string(i);
    css += ".l.s" + n + "{stroke:var(--s" + n + ")}.f.s" + n + "{fill:var(--s" + n + ")}.b" + n +
           "{background:var(--s" + n + ")}\n";
  }
  return css + kReportStyle;
}

std::string choice(const char* group, const char* value, const char* label, bool chosen) {
  return std::string("<label><input type=\"radio\" name=\"") + group + "\" value=\"" + value + "\"" +
         (chosen ? " checked" : "") + "> " + label + "</label>\n";
}

// Every combination of the choices, the first one shown.
std::string charts_html(std::span<const RunRecord> runs, const RunChartOptions& options, std::string& places) {
  std::string html;
  for (const bool tokens : {false, true}) {
    for (const bool logarithmic : {false, true}) {
      const std::string id = std::string(tokens ? "tokens" : "steps") + (logarithmic ? "-log" : "-linear");
      const bool shown = tokens == options.tokens && logarithmic == options.logarithmic;
      std::vector<plot::PanelPlace> panels;
      plot::Chart chart = run_chart(runs, {tokens, logarithmic, options.smoothed_steps});
      chart.title_drawn = false;  // it is the heading of the page
      const std::string svg = plot::svg_element(plot::draw(chart, &panels), "chart-" + id);
      html += "<div class=\"chart\" data-chart=\"" + id + "\"" + (shown ? "" : " hidden") + ">\n" + svg + "</div>\n";
      places += (places.empty() ? "{\"" : ",\"") + id + "\":" + places_json(panels);
    }
  }
  places += "}";
  return html;
}

std::string controls_html(std::span<const RunRecord> runs, const RunChartOptions& options) {
  return "<form class=\"controls\">\n<fieldset><legend>Over</legend>\n" +
         choice("x", "steps", "steps", !options.tokens) +
         choice("x", "tokens", unit_of(runs[0]).c_str(), options.tokens) +
         "</fieldset>\n<fieldset><legend>Loss axis</legend>\n" + choice("y", "linear", "linear", !options.logarithmic) +
         choice("y", "log", "logarithmic", options.logarithmic) + "</fieldset>\n<fieldset><legend>Colors</legend>\n" +
         choice("theme", "auto", "of the system", true) + choice("theme", "light", "light", false) +
         choice("theme", "dark", "dark", false) + "</fieldset>\n</form>\n";
}

std::string details_html(std::span<const RunRecord> runs) {
  std::string html;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunRecord& run = runs[i];
    if (!run.sample.empty()) {
      html += "<details><summary>" + swatch(i) + "Newest samples of " + escaped(run.name) + "</summary>\n<pre>";
      std::string lines;
      for (const char c : run.sample) {  // line by line: a newline is kept, other control characters are not
        if (c != '\n') {
          lines += c;
          continue;
        }
        html += escaped(lines) + "\n";
        lines.clear();
      }
      html += escaped(lines) + "</pre></details>\n";
    }
    if (!run.config.is_object()) continue;
    html += "<details><summary>" + swatch(i) + "Configuration of " + escaped(run.name) + "</summary>\n<pre>";
    const std::string text = run.config.dump(2, ' ', false, ordered_json::error_handler_t::replace);
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      html += escaped(text.substr(begin, end - begin)) + "\n";
      begin = end + 1;
    }
    html += "</pre></details>\n";
  }
  return html;
}

}  // namespace

std::string run_report_html(std::span<const RunRecord> runs, const RunChartOptions& options) {
  if (runs.empty()) refuse_value("a report needs at least one run");
  const std::string title = runs.size() == 1 ? runs[0].name : std::to_string(runs.size()) + " runs";
  std::string places;
  const std::string charts = charts_html(runs, options, places);
  std::string data = "{\"unit\":" + ordered_json(unit_of(runs[0])).dump() + ",\"places\":" + places + ",\"runs\":";
  data += list(runs, [&](const RunRecord& run) {
    return "{\"name\":" + ordered_json(run.name).dump(-1, ' ', false, ordered_json::error_handler_t::replace) +
           ",\"values\":" + hover_json(run, options.smoothed_steps) + "}";
  });
  data += "}";
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
         "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
         "script-src 'unsafe-inline'; img-src data:\">\n<link rel=\"icon\" href=\"data:,\">\n<title>" +
         escaped(title) + " \xE2\x80\x93 samba</title>\n<style>\n" + style() +
         "</style>\n</head>\n<body>\n<main>\n<h1>" + escaped(title) + "</h1>\n" + controls_html(runs, options) +
         "<section aria-label=\"Curves\" id=\"curves\">\n" + charts +
         "<div id=\"values\" hidden></div>\n</section>\n"
         "<p class=\"hint\" id=\"hint\">Point at the curves for their values, or focus them and use the arrow keys, "
         "Home and "
         "End.</p>\n<p class=\"hidden\" id=\"spoken\" aria-live=\"polite\"></p>\n" +
         table_html(runs, options.smoothed_steps) + details_html(runs) +
         "</main>\n<script type=\"application/json\" id=\"data\">" + in_script(data) + "</script>\n<script>\n" +
         kReportScript + "</script>\n</body>\n</html>\n";
}

}  // namespace samba
