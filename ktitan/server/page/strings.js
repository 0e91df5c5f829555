// Every word of the page in both languages. `{name}` is filled in; the key is what the code says.

import { keep, kept } from "./prefs.js";

export const TABLE = {
  newChat: ["New chat", "新对话"],
  search: ["Search conversations", "搜索对话"],
  conversation: ["Conversation", "对话"],
  conversations: ["Conversations", "对话列表"],
  noConversations: ["No conversations yet", "还没有对话"],
  noMatches: ["Nothing found", "没有找到"],
  untitled: ["New chat", "新对话"],
  rename: ["Rename", "重命名"],
  renameTitle: ["Rename conversation", "重命名对话"],
  delete: ["Delete", "删除"],
  deleteTitle: ["Delete this conversation?", "删除此对话？"],
  deleteText: ["“{title}” will be removed from this browser. This cannot be undone.", "“{title}”将从此浏览器中移除，且无法恢复。"],
  export: ["Export", "导出"],
  exportAll: ["Export all", "全部导出"],
  cancel: ["Cancel", "取消"],
  save: ["Save", "保存"],
  toggleSide: ["Conversations", "对话列表"],
  togglePanel: ["Machine and settings", "机器与设置"],
  close: ["Close", "关闭"],
  skip: ["Skip to the question", "跳到输入框"],
  theme: ["Theme", "主题"],
  themeAuto: ["System", "跟随系统"],
  themeLight: ["Light", "浅色"],
  themeDark: ["Dark", "深色"],
  language: ["Language", "语言"],
  emptyTitle: ["Ask this machine", "向这台机器提问"],
  emptyText: [
    "Answers are computed by {model} on the machine that serves this page. Conversations are kept in this browser only.",
    "回答由 {model} 在提供本页面的机器上计算。对话只保存在此浏览器中。",
  ],
  theModel: ["the loaded model", "已加载的模型"],
  messageLabel: ["Your question", "您的问题"],
  placeholder: ["Ask something", "输入问题"],
  keys: ["Enter sends · Shift+Enter new line", "Enter 发送 · Shift+Enter 换行"],
  send: ["Send", "发送"],
  stop: ["Stop", "停止"],
  you: ["You", "您"],
  answer: ["Answer", "回答"],
  copy: ["Copy", "复制"],
  copied: ["Copied", "已复制"],
  edit: ["Edit", "编辑"],
  editing: ["Editing your last question. Sending replaces the answer.", "正在编辑上一个问题，发送后将替换回答。"],
  regenerate: ["Regenerate", "重新生成"],
  latest: ["Latest", "最新"],
  reasoning: ["Reasoning", "思考过程"],
  reasoningNow: ["Reasoning…", "思考中…"],
  waiting: ["Waiting for the first token", "等待第一个词元"],
  prefill: ["Reading the prompt: {done} of {total} tokens", "读取提示词：{done} / {total} 词元"],
  queued: ["In the queue: {ahead} ahead", "排队中：前面还有 {ahead} 个"],
  elsewhere: ["Being written in another tab", "正在另一个标签页中生成"],
  stopped: ["stopped", "已停止"],
  cut: ["interrupted; what had arrived is kept", "已中断；已收到的内容被保留"],
  lengthEnd: ["stopped at the token limit", "已达到词元上限"],
  started: ["The answer has started", "开始回答"],
  finished: ["The answer is complete", "回答完毕"],
  speed: ["{rate} tokens/s", "{rate} 词元/秒"],
  token: ["{count} token", "{count} 词元"],
  aboutTokens: ["about {count} tokens", "约 {count} 词元"],
  tokens: ["{count} tokens", "{count} 词元"],
  retry: ["Try again", "重试"],
  errorBusy: ["The server is busy. Trying again in {seconds} s.", "服务器繁忙，{seconds} 秒后重试。"],
  errorRefused: ["The server refused the request: {message}", "服务器拒绝了请求：{message}"],
  errorFault: ["The server failed: {message}", "服务器出错：{message}"],
  errorUnreachable: ["The server cannot be reached. Is ktitan still running?", "无法连接服务器。ktitan 还在运行吗？"],
  errorLost: ["The connection was lost. What had arrived is kept.", "连接已断开。已收到的内容被保留。"],
  errorKey: ["The server asks for an API key.", "服务器需要 API 密钥。"],
  enterKey: ["Enter key", "输入密钥"],
  keyTitle: ["API key", "API 密钥"],
  keyText: ["This server answers only with a key. It is kept until this tab is closed.", "此服务器需要密钥。密钥保留到此标签页关闭为止。"],
  keyWrong: ["The server did not accept this key.", "服务器不接受此密钥。"],
  keyRemember: ["Remember on this device", "在此设备上记住"],
  notKept: ["This browser does not keep data for this page: conversations end with the tab.", "此浏览器不为本页面保存数据：关闭标签页后对话将丢失。"],
  machine: ["Memory tiers", "存储层级"],
  tier_vram: ["VRAM", "显存"],
  tier_ram: ["RAM", "内存"],
  tier_nvme: ["Drive", "硬盘"],
  usedOf: ["{used} of {budget}", "{used} / {budget}"],
  noBudget: ["{used}, no limit set", "{used}，未设上限"],
  unused: ["not used", "未使用"],
  unknown: ["unknown", "未知"],
  hits: ["Hits", "命中率"],
  driveRate: ["Drive reads", "硬盘读取"],
  perSecond: ["{amount}/s", "{amount}/秒"],
  stall: ["Drive waits", "等待硬盘"],
  stallText: ["{share} % of the time", "{share} % 的时间"],
  prefetch: ["Reads ahead", "预读"],
  prefetchOff: ["off", "关闭"],
  prefetchOn: ["on, up to {level} a layer", "开启，每层至多 {level} 个"],
  foreseen: ["Foreseen", "预见"],
  foreseenText: ["{share} % of misses", "{share} % 的未命中"],
  policy: ["Cache policy", "缓存策略"],
  queue: ["Requests", "请求"],
  queueText: ["{running} running, {waiting} waiting", "{running} 个进行中，{waiting} 个等待"],
  notStreaming: ["nothing is streamed", "没有流式加载"],
  lastAnswer: ["Last answer", "上次回答"],
  rate: ["Speed", "速度"],
  firstToken: ["First token after", "首词元耗时"],
  promptTokens: ["Prompt", "提示词"],
  answerTokens: ["Answer", "回答"],
  seconds: ["{count} s", "{count} 秒"],
  none: ["–", "–"],
  settings: ["Settings of this conversation", "此对话的设置"],
  system: ["System prompt", "系统提示词"],
  samplingHint: ["An empty field means the model's own value.", "留空则使用模型自带的值。"],
  temperature: ["Temperature", "温度"],
  top_p: ["Top-p", "Top-p"],
  top_k: ["Top-k", "Top-k"],
  min_p: ["Min-p", "Min-p"],
  max_tokens: ["Max tokens", "最大词元数"],
  seed: ["Seed", "随机种子"],
  repetition_penalty: ["Repetition penalty", "重复惩罚"],
  outOfRange: ["{name} must be {range}; it is not sent.", "{name} 应为 {range}，不会发送。"],
};

const LANGUAGES = ["en", "zh"];
let language = kept("language") ?? (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en");

/** "en" or "zh". */
export const currentLanguage = () => language;

/** The words for `key`, with `{name}`s filled from `values`. */
export function t(key, values = {}) {
  const words = TABLE[key][Math.max(0, LANGUAGES.indexOf(language))];
  return words.replace(/\{(\w+)\}/g, (all, name) => String(values[name] ?? all));
}

/** "1 token", "12 tokens", or "about 12 tokens" where the server has not counted them. */
export const tokensText = (count, exact = true) => t(exact ? (count === 1 ? "token" : "tokens") : "aboutTokens", { count });

/** Fill every element that names its words: data-t its text, data-t-label its label and tooltip, data-t-hint its placeholder. */
export function translate(root = document) {
  document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  for (const element of root.querySelectorAll("[data-t]")) element.textContent = t(element.dataset.t);
  for (const element of root.querySelectorAll("[data-t-hint]")) element.placeholder = t(element.dataset.tHint);
  for (const element of root.querySelectorAll("[data-t-label]")) {
    element.setAttribute("aria-label", t(element.dataset.tLabel));
    if (element.matches("button")) element.title = t(element.dataset.tLabel);
  }
}

/** Switch the language; listeners of the document's "language" event redraw what they wrote themselves. */
export function setLanguage(wanted) {
  language = wanted;
  keep("language", wanted);
  translate();
  document.dispatchEvent(new Event("language"));
}
