// Searches a question by the words that carry its meaning.
// The theme's search treats each word as the start of a word, so that "no" also finds "notice".
(() => {
  "use strict";
  const FILLERS = new Set(
    ("a an and any are as at be been by can could did do does for from had has have how i if in is it " +
      "me my no not of on or our should so that the their then there these they this to was we what when where which " +
      "who why will with would you your").split(" "),
  );
  const QUERY = 2; // the type of a message that asks the theme's worker for results
  const post = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message, ...rest) {
    if (message?.type !== QUERY || typeof message.data !== "string") return post.call(this, message, ...rest);
    const words = message.data.split(/\s+/).filter((word) => !FILLERS.has(word.toLowerCase()));
    return post.call(this, { ...message, data: words.length ? words.join(" ") : message.data }, ...rest);
  };
})();
