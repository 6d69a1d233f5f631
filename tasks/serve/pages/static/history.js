// Chats and settings, which this browser keeps for this address and sends nowhere by itself.

const CHATS = "gristmill-chats", SETTINGS = "gristmill-settings", MOST = 200;
const memory = new Map(); // in a browser that keeps nothing

function read(name) {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return memory.get(name);
  }
}

/** Whether there is room for the value. */
function write(name, value) {
  memory.set(name, value);
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch (error) {
    return error.name !== "QuotaExceededError";
  }
  return true;
}

/** All chats, the latest first: {id, title, turns: [{question, answers: [{text, …}], at}]}. */
export function chats() {
  const found = read(CHATS);
  return Array.isArray(found) ? found.filter(chat => Array.isArray(chat?.turns)) : [];
}

/** Keep a chat as the latest. The oldest ones go where there is no room. */
export function keep(chat) {
  const all = [chat, ...chats().filter(({id}) => id !== chat.id)].slice(0, MOST);
  while (!write(CHATS, all) && all.length > 1) all.pop();
}

/** Delete one chat, or all of them. */
export function forget(chat) {
  write(CHATS, chat ? chats().filter(({id}) => id !== chat.id) : []);
}

/** What was entered in the settings, and the model. */
export const settings = () => ({...read(SETTINGS)});
export const change = changes => write(SETTINGS, {...settings(), ...changes});
