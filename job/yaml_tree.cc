#include "job/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <istream>
#include <streambuf>

namespace tutti {
namespace {

struct Refusal {
  YAML::Mark mark;
  std::string what;
};

class TreeBuilder : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnAnchor(const YAML::Mark& mark, const std::string& name) override {
    throw Refusal{mark, fmt::format("anchor '&{}'; job files have no anchors and aliases", name)};
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw Refusal{mark, "an alias; job files have no anchors and aliases"};
  }
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { Add({.at = At(mark)}, mark); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, const std::string& value) override {
    if (tag != "?" && tag != "!" && !tag.empty()) RefuseTag(mark, tag);
    Add({.kind = YamlNode::Kind::kScalar, .text = value, .quoted = tag == "!", .at = At(mark)}, mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kSequence, mark, tag);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kMapping, mark, tag);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapEnd() override { Close(); }

  YamlNode TakeRoot() { return std::move(root_); }

 private:
  struct Frame {
    YamlNode node;
    bool have_key = false;
    std::string key{};
    YamlPosition key_at{};
  };

  static YamlPosition At(const YAML::Mark& mark) { return {.line = mark.line + 1, .column = mark.column + 1}; }
  [[noreturn]] static void RefuseTag(const YAML::Mark& mark, const std::string& tag) {
    throw Refusal{mark, fmt::format("tag '{}'; job files have no tags", tag)};
  }

  void Open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag) {
    if (tag != "?" && !tag.empty()) RefuseTag(mark, tag);
    if (static_cast<int>(stack_.size()) >= kMaxYamlDepth) {
      throw Refusal{mark, fmt::format("nested deeper than {} levels", kMaxYamlDepth)};
    }
    if (!stack_.empty() && stack_.back().node.kind == YamlNode::Kind::kMapping && !stack_.back().have_key) {
      throw Refusal{mark, "a list or section as a key; keys are plain text"};
    }
    stack_.push_back({.node = {.kind = kind, .at = At(mark)}});
  }

  void Close() {
    YamlNode node = std::move(stack_.back().node);
    stack_.pop_back();
    Put(std::move(node));
  }

  void Add(YamlNode node, const YAML::Mark& mark) {
    if (++nodes_ > kMaxYamlNodes) throw Refusal{mark, fmt::format("more than {} values", kMaxYamlNodes)};
    if (!stack_.empty() && stack_.back().node.kind == YamlNode::Kind::kMapping && !stack_.back().have_key) {
      if (node.kind == YamlNode::Kind::kNull) throw Refusal{mark, "an empty or null key; keys are plain text"};
      stack_.back().have_key = true;
      stack_.back().key = std::move(node.text);
      stack_.back().key_at = node.at;
      return;
    }
    Put(std::move(node));
  }

  void Put(YamlNode node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& top = stack_.back();
    if (top.node.kind == YamlNode::Kind::kSequence) {
      top.node.items.push_back(std::move(node));
    } else {
      top.node.entries.push_back({.key = std::move(top.key), .at = top.key_at, .value = std::move(node)});
      top.have_key = false;
    }
  }

  std::vector<Frame> stack_;
  YamlNode root_;
  int nodes_ = 0;
};

// Reads a string_view without a copy.
class ViewBuffer : public std::streambuf {
 public:
  explicit ViewBuffer(std::string_view text) {
    char* begin = const_cast<char*>(text.data());
    setg(begin, begin, begin + text.size());
  }
};

Status Located(int line, int column, std::string_view what) { return InvalidArgument("{}:{}: {}", line, column, what); }

// Length of the UTF-8 sequence at the start of `text`; 0 when there is none.
int SequenceLength(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned lead = byte(0);
  const int length = lead < 0x80                   ? 1
                     : lead >= 0xC2 && lead < 0xE0 ? 2
                     : lead >= 0xE0 && lead < 0xF0 ? 3
                     : lead >= 0xF0 && lead < 0xF5 ? 4
                                                   : 0;
  for (int i = 1; i < length; ++i)
    if ((byte(static_cast<size_t>(i)) & 0xC0) != 0x80) return 0;
  const unsigned second = byte(1);
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) || (lead == 0xF0 && second < 0x90) ||
      (lead == 0xF4 && second > 0x8F)) {
    return 0;
  }
  return length;
}

// What must be refused before the parser queues tokens for it: bytes that are no text and brackets or dashes nested too
// deeply.
Status Prescan(std::string_view text) {
  int line = 1, column = 1, flow_depth = 0, dashes = 0;
  char quote = 0;
  bool only_dashes = true;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    const int length = SequenceLength(text.substr(i));
    if (length == 0) return Located(line, column, "not UTF-8 text");
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r' && c != '\t') || c == 0x7F) {
      return Located(line, column, fmt::format("control character 0x{:02x}", static_cast<unsigned char>(c)));
    }
    if (quote != 0) {
      if (c == '\\' && quote == '"' && i + 1 < text.size() && text[i + 1] != '\n') ++i, ++column;
      if (c == quote) quote = 0;
    } else if (c == '#' && (i == 0 || text[i - 1] == ' ' || text[i - 1] == '\n' || text[i - 1] == '\t')) {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
    } else if ((c == '"' || c == '\'') &&
               (i == 0 || std::string_view(" \n\t[{,:").find(text[i - 1]) != std::string_view::npos)) {
      quote = c;
    } else if (c == '[' || c == '{') {
      ++flow_depth;
    } else if (c == ']' || c == '}') {
      flow_depth = std::max(0, flow_depth - 1);
    }
    only_dashes = only_dashes && (c == '-' || c == '?' || c == ':' || c == ' ');
    if (only_dashes && c != ' ') ++dashes;
    if (flow_depth > kMaxYamlDepth || (only_dashes && dashes > kMaxYamlDepth && text.substr(i + 1, 1) == " ")) {
      return Located(line, column, fmt::format("nested deeper than {} levels", kMaxYamlDepth));
    }
    if (c == '\n') {
      ++line, column = 1, dashes = 0;
      only_dashes = true;
    } else {
      ++column;
    }
    i += static_cast<size_t>(length);
  }
  return OkStatus();
}

}  // namespace

YamlEntry* YamlNode::Find(std::string_view key) {
  for (YamlEntry& entry : entries)
    if (entry.key == key) return &entry;
  return nullptr;
}

StatusOr<YamlNode> ParseYaml(std::string_view text) {
  TUTTI_RETURN_IF_ERROR(Prescan(text));
  ViewBuffer buffer(text);
  std::istream stream(&buffer);
  TreeBuilder builder;
  try {
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) return YamlNode{.at = {.line = 1, .column = 1}};
    YamlNode root = builder.TakeRoot();
    TreeBuilder second;
    if (parser.HandleNextDocument(second)) {
      const YamlPosition at = second.TakeRoot().at;
      return Located(at.line, at.column, "a second document; a job file has one");
    }
    return root;
  } catch (const Refusal& refusal) {
    return Located(refusal.mark.line + 1, refusal.mark.column + 1, refusal.what);
  } catch (const YAML::Exception& error) {
    return Located(error.mark.line + 1, error.mark.column + 1, fmt::format("not YAML: {}", error.msg));
  }
}

}  // namespace tutti
