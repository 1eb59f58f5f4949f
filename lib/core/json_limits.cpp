#include "samba/core/json_limits.h"

#include <set>
#include <utility>
#include <vector>

namespace samba {

namespace {

using nlohmann::json;

struct TooMuch {
  std::string fault;
};

// Watches a text while it is parsed.
class Bounds {
 public:
  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    using Event = json::parse_event_t;
    switch (event) {
      case Event::object_start:
        keys_.emplace_back();
        check_depth(depth);
        break;
      case Event::array_start:
        check_depth(depth);
        break;
      case Event::object_end:
        keys_.pop_back();
        break;
      case Event::array_end:
        break;
      case Event::key:
        if (!keys_.back().insert(parsed.get<std::string>()).second) {
          throw TooMuch{"the key \"" + parsed.get<std::string>() + "\" is given twice"};
        }
        return true;
      case Event::value:
        break;
    }
    if (event != Event::object_end && event != Event::array_end && ++values_ > kMostTextValues) {
      throw TooMuch{"it has more than " + std::to_string(kMostTextValues) + " values"};
    }
    return true;
  }

 private:
  static void check_depth(int depth) {
    if (depth >= kDeepestText) throw TooMuch{"it nests deeper than " + std::to_string(kDeepestText) + " levels"};
  }

  std::vector<std::set<std::string>> keys_;
  std::size_t values_ = 0;
};

}  // namespace

json parse_bounded(std::string_view text, std::string& fault) {
  // The parser takes a zero byte for the end, whatever comes behind it.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {
    fault = "it is not JSON: byte " + std::to_string(zero) + " is zero";
    return json(json::value_t::discarded);
  }
  Bounds bounds;
  const json::parser_callback_t watch = [&](int depth, json::parse_event_t event, json& parsed) {
    return bounds(depth, event, parsed);
  };
  try {
    return json::parse(text.begin(), text.end(), watch);
  } catch (const TooMuch& much) {
    fault = much.fault;
  } catch (const json::exception& error) {
    const std::string what = error.what();
    const std::size_t bracket = what.find("] ");  // behind "[json.exception.parse_error.101]"
    fault = "it is not JSON: " + (bracket == std::string::npos ? what : what.substr(bracket + 2));
  }
  return json(json::value_t::discarded);
}

json parse_bounded(std::string_view text) {
  std::string ignored;
  return parse_bounded(text, ignored);
}

}  // namespace samba
